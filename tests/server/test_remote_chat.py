"""ChatMemDecayRemote: what it sends, and what it makes of answers, faults and streams that are left."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from memdecay_adapters import ChatMemDecayRemote
from memdecay_adapters.langchain.chat_model import ChatMemDecay
from memdecay_adapters.langchain.marking import tag
from memdecay_adapters.remote import RemoteEngine
from memdecay_adapters.server.tenants import Tenants
from memdecay_agents.errors import BudgetError, ConfigError, EngineError
from tests.adapters.chat_calls import CALL, add, four_ways
from tests.adapters.fake_engine import FakeEngine
from tests.server.fake_server import KEY, FakeBackend, connection_threads


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
    model, before = ChatMemDecayRemote(engine=engine), connection_threads()
    assert before
    answers = asyncio.run(model.abatch([f"hi {number}" for number in range(20)]))
    assert [answer.content for answer in answers] == ["Hello there"] * 20
    assert [answer.content for answer in model.batch(["a", "b", "c"])] == ["Hello there"] * 3
    assert connection_threads() <= before


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
