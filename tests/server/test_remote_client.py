"""RemoteEngine and ChatMemDecayRemote: what they send, what they make of answers, whom they refuse."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage
from langchain_core.tools import tool
from pydantic import SecretStr

from memdecay_adapters import ChatMemDecayRemote
from memdecay_adapters.langchain.chat_model import ChatMemDecay
from memdecay_adapters.langchain.marking import tag
from memdecay_adapters.remote import RemoteEngine, RemoteSampling
from memdecay_adapters.server.fingerprint import tokenizer_fingerprint
from memdecay_adapters.server.tenants import Tenants
from memdecay_adapters.server.wire import PROTOCOL
from memdecay_agents import MemDecayConfig
from memdecay_agents.errors import BudgetError, ConfigError, EngineError, HintsError, RemoteError, UnsupportedError
from memdecay_agents.hints import RequestHints
from memdecay_agents.spans import Span
from tests.adapters.fake_engine import FakeEngine
from tests.server.fake_server import FakeBackend, fake_app, serving
from tests.server.limits_for_tests import LIMITS

KEY = "key-of-one"
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 3, "b": 4}}\n</tool_call>'
SAMPLING = RemoteSampling(max_tokens=4)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(scope="module")
def backend(tokenizer: Any) -> FakeBackend:
    limits = replace(LIMITS, vocabulary=len(tokenizer), config=MemDecayConfig(page_size_tokens=16))
    return FakeBackend(limits=limits, fingerprint=tokenizer_fingerprint(tokenizer))


@pytest.fixture(scope="module")
def url(backend: FakeBackend) -> Iterator[str]:
    with serving(fake_app(backend, [KEY])) as address:
        yield address


@pytest.fixture
def engine(url: str, backend: FakeBackend, tokenizer: Any) -> Iterator[RemoteEngine]:
    backend.pieces, backend.fault, backend.fault_late, backend.hang = ("Hello", " there"), None, False, False
    backend.aborted.clear()
    with RemoteEngine(url, api_key=KEY, tokenizer=tokenizer, read_timeout_seconds=20) as engine:
        yield engine


def merged(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    return total


async def collect(stream: Any) -> list[Any]:
    return [chunk async for chunk in stream]


def four_ways(model: Any, messages: Any, **kwargs: Any) -> list[Any]:
    return [
        model.invoke(messages, **kwargs),
        asyncio.run(model.ainvoke(messages, **kwargs)),
        merged(list(model.stream(messages, **kwargs))),
        merged(asyncio.run(collect(model.astream(messages, **kwargs)))),
    ]


# ---- the chat model


def test_four_ways_give_one_answer_with_its_summary(engine: RemoteEngine, backend: FakeBackend) -> None:
    model = ChatMemDecayRemote(engine=engine)
    for message in four_ways(model, "hi", thread_id="t"):
        assert message.content == "Hello there"
        about = message.response_metadata
        assert (about["model_name"], about["finish_reason"]) == ("fake", "stop")
        assert about["memdecay"]["session"] == "default/t/default/"
        assert about["memdecay"]["page_runs"] == [[0, 2, "user", True], [2, 3, "user", False]]
        assert message.usage_metadata["input_token_details"] == {"cache_read": 16}
    assert {call.hints.tenant for call in backend.calls[-4:]} == {Tenants([KEY], b"secret").of(f"Bearer {KEY}")}


CONVERSATION = [
    SystemMessage("Be brief."),
    HumanMessage([tag("A fact. " * 9, "retrieval"), tag("What is it?", "user")]),
    AIMessage([{"type": "reasoning", "reasoning": "It must be a fact."}, {"type": "text", "text": "A fact."}]),
    HumanMessage("Sure?"),
]


@pytest.mark.parametrize("settings", [{}, {"agent": "a|b", "budget": 256, "pin": ["plan"], "output_region": "plan"}])
def test_the_server_is_sent_what_the_embedded_engine_is_given(
    engine: RemoteEngine, backend: FakeBackend, tokenizer: Any, settings: dict[str, Any]
) -> None:
    local = FakeEngine(tokenizer)
    call = {
        **settings,
        "thread_id": "t/1",
        "temperature": 0.5,
        "seed": 3,
        "stop": ["END"],
        "top_p": 0.9,
        "max_tokens": 9,
    }
    ChatMemDecay(engine=local).invoke(CONVERSATION, **call)
    ChatMemDecayRemote(engine=engine).invoke(CONVERSATION, **call)
    sent = backend.calls[-1]
    assert sent.prompt_token_ids == local.requests[-1][0]
    assert sent.hints.model_copy(update={"tenant": "default"}) == local.hints
    assert "It must be a fact." in local.prompt, "reasoning of earlier turns is part of the prompt"
    for name in ("temperature", "seed", "stop", "top_p", "max_tokens", "logprobs"):
        given, here = getattr(sent.sampling, name), getattr(local.sampling, name)
        assert (list(given) if isinstance(given, tuple) else given) == here, name


def test_tool_calls_come_back_and_their_grammar_goes_there(engine: RemoteEngine, backend: FakeBackend) -> None:
    backend.pieces = ("Sure.\n", CALL[:30], CALL[30:])
    for message in four_ways(ChatMemDecayRemote(engine=engine).bind_tools([add], tool_choice="any"), "add"):
        assert [(call["name"], call["args"]) for call in message.tool_calls] == [("add", {"a": 3, "b": 4})]
        assert message.response_metadata["finish_reason"] == "tool_calls"
    assert '"add' in str(backend.calls[-1].sampling.structural_tag)
    assert backend.calls[-1].hints.output_region == "tool_in"


def test_reasoning_is_kept(engine: RemoteEngine, backend: FakeBackend) -> None:
    backend.pieces = ("<think>Three and", " four.</think>", "Seven.")
    for remote in four_ways(ChatMemDecayRemote(engine=engine), "3 + 4?"):
        assert "Three and four." in str(remote.model_dump())
        assert "Seven." in remote.text


def test_what_the_server_refuses_is_raised_as_its_own_error(engine: RemoteEngine) -> None:
    model = ChatMemDecayRemote(engine=engine)
    with pytest.raises(BudgetError, match="budget"):
        model.invoke("hi", budget=16)
    with pytest.raises(BudgetError):
        asyncio.run(model.ainvoke("hi", budget=16))
    with pytest.raises(BudgetError):
        list(model.stream("hi", budget=16))
    with pytest.raises(ConfigError, match="trace_decode_token_ids"):
        model.invoke("hi", trace_decode_token_ids=[1])


@pytest.mark.parametrize("late", [False, True])
def test_a_fault_of_the_server_ends_the_call(engine: RemoteEngine, backend: FakeBackend, late: bool) -> None:
    backend.fault, backend.fault_late = EngineError(where="engine", rule="it failed", remedy="Look."), late
    with pytest.raises(EngineError, match="it failed"):
        ChatMemDecayRemote(engine=engine).invoke("hi")


def test_cancelling_and_leaving_a_stream_abort_on_the_server(engine: RemoteEngine, backend: FakeBackend) -> None:
    backend.hang, model = True, ChatMemDecayRemote(engine=engine)

    async def cancelled() -> None:
        started = len(backend.calls)
        task = asyncio.create_task(model.ainvoke("hi"))
        while len(backend.calls) == started:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert backend.aborted.wait(20)
    backend.aborted.clear()
    stream = model.stream("hi")
    next(stream)
    stream.close()
    assert backend.aborted.wait(20)


def test_many_callers_at_once_share_one_connection_thread(engine: RemoteEngine) -> None:
    model, before = ChatMemDecayRemote(engine=engine), threading.active_count()
    answers = asyncio.run(model.abatch([f"hi {number}" for number in range(20)]))
    assert [answer.content for answer in answers] == ["Hello there"] * 20
    assert [answer.content for answer in model.batch(["a", "b", "c"])] == ["Hello there"] * 3
    assert [thread.name for thread in threading.enumerate()].count("memdecay-remote") == 1, before


def test_sessions_are_listed_and_given_back(engine: RemoteEngine, backend: FakeBackend) -> None:
    (session,) = engine.sessions()
    assert (session.session, session.state, session.pages_held, session.idle_seconds) == ("t", "idle", 2, 1.5)
    assert ChatMemDecayRemote(engine=engine).release_thread("t 1/é") == 1
    assert backend.asked[-1][1] == "t 1/é"


def test_log_probabilities_come_over_the_wire() -> None:
    from types import SimpleNamespace

    from memdecay_adapters.server.wire import chunk_event, read_logprobs

    row = {7: SimpleNamespace(logprob=float("-inf"), rank=2, decoded_token="a"),
           8: SimpleNamespace(logprob=-0.5, rank=1, decoded_token=None)}  # fmt: skip
    (back,) = read_logprobs(chunk_event("a", [7], [row])["logprobs"]) or ()
    assert (back[7].logprob, back[8].logprob, back[8].decoded_token) == (-9999.0, -0.5, None)
    assert read_logprobs(None) is None


# ---- who is refused


def engine_of(handler: Any, **options: Any) -> RemoteEngine:
    return RemoteEngine("http://server/v1/", transport=httpx.MockTransport(handler), **options)


def answering(status: int, body: Any) -> Any:
    return lambda request: httpx.Response(status, json=body)


@pytest.mark.parametrize(
    ("handler", "kind", "message"),
    [
        (answering(404, {"error": {"message": "Not Found"}}), UnsupportedError, "does not run the memdecay plugin"),
        (
            answering(200, {"protocol": PROTOCOL + 1}),
            UnsupportedError,
            f"version {PROTOCOL + 1} of our protocol, not {PROTOCOL}",
        ),
        (answering(200, ["what"]), UnsupportedError, "version None"),
        (answering(401, {"error": "Unauthorized"}), RemoteError, "refuses the API key: Unauthorized.*api_key"),
        (answering(500, {}), RemoteError, "HTTP 500"),
        (lambda request: httpx.Response(200, text="<html>"), RemoteError, "HTTP 200"),
    ],
)  # fmt: skip
def test_a_server_that_is_none_of_ours_is_refused(handler: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        engine_of(handler)
    assert "memdecay-remote" not in [thread.name for thread in threading.enumerate()]


def test_nobody_there_is_said() -> None:
    model = ChatMemDecayRemote(base_url="http://127.0.0.1:9", tokenizer="x")
    with pytest.raises(RemoteError, match=r"http://127.0.0.1:9: it cannot be reached"):
        model.invoke("hi")
    with pytest.raises(RemoteError, match="cannot be reached"):
        asyncio.run(model.ainvoke("hi"))


def test_another_key_is_another_tenant(url: str) -> None:
    # the fake server has no authentication in front: vLLM's answers 401 to a key that it does not know
    with RemoteEngine(url, api_key="another key") as stranger:
        assert stranger.sessions()[0].agent != Tenants([KEY], b"secret").of(f"Bearer {KEY}")


def test_a_tokenizer_that_gives_other_ids_is_refused(url: str, backend: FakeBackend, tokenizer: Any) -> None:
    class Other:
        def __call__(self, text: str, **options: Any) -> Any:
            return tokenizer(text.upper(), **options)

        def get_vocab(self) -> Any:
            return tokenizer.get_vocab()

    with (
        RemoteEngine(url, api_key=KEY, tokenizer=Other()) as engine,
        pytest.raises(ConfigError, match="other token ids"),
    ):
        engine.tokenizer  # noqa: B018
    with (
        RemoteEngine(url, api_key=KEY, tokenizer="/no/such/folder") as engine,
        pytest.raises(Exception, match="folder"),
    ):
        engine.tokenizer  # noqa: B018


def test_an_answer_that_is_no_event_of_ours_ends_the_call(engine: RemoteEngine, tokenizer: Any) -> None:
    info = engine.info

    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json=info)
        return httpx.Response(200, text='data: {"text": "a"}\n\n')

    with engine_of(handler, tokenizer=tokenizer) as strange, pytest.raises(RemoteError, match="cannot be read"):
        strange.generate([1], SAMPLING)


def test_an_answer_that_ends_early_ends_the_call(engine: RemoteEngine) -> None:
    info = engine.info

    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json=info)
        return httpx.Response(200, text='data: {"text": "a", "token_ids": [1], "logprobs": null}\n\n')

    with engine_of(handler) as strange, pytest.raises(RemoteError, match="broke off"):
        strange.generate([1], SAMPLING)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"config": MemDecayConfig()}, "config.*the server decides"),
        ({"engine_args": {"dtype": "float32"}}, "engine_args"),
        ({"tenant": "other"}, "the tenant follows from api_key"),
        ({"base_url": "nonsense"}, "no address of a server.*http://127"),
        ({"base_url": "localhost:8000"}, "no address"),
        ({"base_url": "http:///v1"}, "no address"),
    ],
)
def test_what_the_server_decides_is_no_field_of_the_client(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ChatMemDecayRemote(**fields)


def test_another_model_than_the_servers_is_refused(url: str, tokenizer: Any) -> None:
    model = ChatMemDecayRemote(base_url=url, api_key=SecretStr(KEY), tokenizer=tokenizer, model="bigger")
    with pytest.raises(UnsupportedError, match=r"'bigger'.*holds 'fake'"):
        model.invoke("hi")


def test_models_with_one_address_share_a_connection(url: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMDECAY_API_KEY", KEY)
    url += "/v1"  # an address that no other test has used
    one = ChatMemDecayRemote(base_url=url, tokenizer=tokenizer)
    assert one.model_name == "remote", "nothing is asked before the first call"
    assert one.get_engine() is ChatMemDecayRemote(base_url=url, tokenizer=tokenizer, default_budget=64).get_engine()
    assert one.model_name == "fake"
    assert one.get_engine() is not ChatMemDecayRemote(base_url=url, api_key="k", tokenizer=tokenizer).get_engine()
    one.get_engine().close()
    assert not one.get_engine().closed, "a closed connection is opened anew"


def test_keys_stay_out_of_what_is_shown() -> None:
    model = ChatMemDecayRemote(api_key="very secret", base_url="http://somewhere")
    assert "very secret" not in repr(model)
    assert "very secret" not in str(model._identifying_params)
    assert model._identifying_params["base_url"] == "http://somewhere"


def test_a_closed_engine_and_one_of_another_process_refuse(
    engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(EngineError, match="forked"):
            engine.submit([1], SAMPLING)
        engine.close()
    assert engine.generate([1], SAMPLING, RequestHints()).text == "Hello there"
    engine.close()
    engine.close()
    assert engine.closed
    with pytest.raises(EngineError, match="closed"):
        engine.submit([1], SAMPLING)


def test_hints_that_are_too_large_are_refused_before_they_are_sent(engine: RemoteEngine) -> None:
    spans = tuple(Span(i, i + 1, "x" * 50 + str(i)) for i in range(2000))
    with pytest.raises(HintsError, match="65536"):
        engine.submit([1] * 2000, SAMPLING, RequestHints.model_construct(spans=spans))


def test_the_client_needs_no_vllm(url: str, backend: FakeBackend, model_path: str) -> None:
    backend.hang = False
    code = f"""
import sys
sys.modules["vllm"] = None
from memdecay_adapters import ChatMemDecayRemote
model = ChatMemDecayRemote(base_url={url!r}, api_key={KEY!r}, tokenizer={model_path!r})
print([name for name in ("torch", "transformers", "starlette", "fastapi") if name in sys.modules])
print(model.invoke("hi").content)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines() == ["[]", "Hello there"]
