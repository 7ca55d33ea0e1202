"""What LangChain's own machinery does around a call: time limits, configurable fields, cache, callbacks, parsers."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler, UsageMetadataCallbackHandler
from langchain_core.messages import HumanMessage
from langchain_core.rate_limiters import BaseRateLimiter
from langchain_core.runnables import ConfigurableField
from pydantic import ValidationError

from memdecay_adapters.langchain.chat_model import ChatMemDecay
from memdecay_agents.errors import ConfigError, TimeLimitError
from tests.adapters.chat_calls import CALL, add, collect, four_ways, lookup
from tests.adapters.fake_engine import FakeEngine


def test_a_call_that_takes_too_long_is_aborted_and_says_so(fake: FakeEngine) -> None:
    fake.hang = True
    model = ChatMemDecay(engine=fake, timeout=0.05, max_retries=2, api_key="unused")
    ways = (
        lambda: model.invoke("hi"),
        lambda: asyncio.run(model.ainvoke("hi")),
        lambda: list(model.stream("hi")),
        lambda: asyncio.run(collect(model.astream("hi"))),
        lambda: ChatMemDecay(engine=fake).invoke("hi", timeout=0.05),
    )
    for number, way in enumerate(ways, 1):
        with pytest.raises(TimeLimitError, match=r"0\.05 seconds"):
            way()
        assert len(set(fake.aborted)) == number
    fake.hang = False
    assert model.invoke("hi").content == "Hello there"
    assert issubclass(TimeLimitError, TimeoutError)


@pytest.mark.parametrize("timeout", [0, -1, "soon", True, float("inf")])
def test_bad_timeouts(fake: FakeEngine, timeout: Any) -> None:
    with pytest.raises((ConfigError, ValidationError)):
        ChatMemDecay(engine=fake, timeout=timeout)
    with pytest.raises(ConfigError, match="seconds"):
        ChatMemDecay(engine=fake).invoke("hi", timeout=timeout)
    assert not fake.requests


def test_configurable_fields_and_alternatives(fake: FakeEngine) -> None:
    model = ChatMemDecay(engine=fake, max_tokens=3, pin=("plan",)).configurable_fields(
        temperature=ConfigurableField("heat"), max_tokens=ConfigurableField("length")
    )
    model.invoke("hi")
    assert (fake.sampling.temperature, fake.sampling.max_tokens) == (0.0, 3)
    model.invoke("hi", {"configurable": {"heat": 0.75, "length": 5}})
    assert (fake.sampling.temperature, fake.sampling.max_tokens) == (0.75, 5)
    assert fake.hints.pins == ("plan",)  # what is not configurable stays
    assert len(list(model.with_config(configurable={"length": 7}).stream("hi"))) == 3
    assert fake.sampling.max_tokens == 7
    either = ChatMemDecay(engine=fake, max_tokens=2).configurable_alternatives(
        ConfigurableField("which"), long=ChatMemDecay(engine=fake, max_tokens=9)
    )
    either.invoke("hi", {"configurable": {"which": "long"}})
    assert fake.sampling.max_tokens == 9


def test_a_cached_answer_belongs_to_its_settings(fake: FakeEngine) -> None:
    model = ChatMemDecay(engine=fake, cache=InMemoryCache())
    first, again = model.invoke("hi"), model.invoke("hi")
    assert (again.content, len(fake.requests)) == (first.content, 1)
    assert asyncio.run(model.ainvoke("hi")).content == first.content
    assert len(fake.requests) == 1
    for metadata in ({"memdecay": {"budget": 64}}, {"memdecay": {"agent": "other"}}):
        model.invoke("hi", {"metadata": metadata})
        model.invoke("hi", {"metadata": metadata})
    model.invoke("hi", budget=64)
    model.invoke("hi", temperature=0.5)
    assert len(fake.requests) == 5
    uncached = ChatMemDecay(engine=fake, cache=False)
    uncached.invoke("hi")
    uncached.invoke("hi")
    assert len(fake.requests) == 7


class Gate(BaseRateLimiter):
    """Counts who passes."""

    passed = 0

    def acquire(self, *, blocking: bool = True) -> bool:
        self.passed += 1
        return True

    async def aacquire(self, *, blocking: bool = True) -> bool:
        return self.acquire(blocking=blocking)


def test_a_rate_limiter_is_asked_once_a_call(fake: FakeEngine) -> None:
    gate = Gate()
    four_ways(ChatMemDecay(engine=fake, rate_limiter=gate), "hi")
    assert gate.passed == 4


class Recorder(BaseCallbackHandler):
    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.started: list[dict[str, Any]] = []
        self.ended: list[Any] = []

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        self.started.append(kwargs)

    def on_llm_new_token(self, token: str, **kwargs: Any) -> None:
        self.tokens.append(token)

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        self.ended.append(response)


def test_callbacks_see_each_token_the_parameters_and_the_usage(fake: FakeEngine) -> None:
    def run(call: Any, **fields: Any) -> tuple[Recorder, UsageMetadataCallbackHandler]:
        recorder, usage = Recorder(), UsageMetadataCallbackHandler()
        call(ChatMemDecay(engine=fake, temperature=0.25, **fields), {"callbacks": [recorder, usage]})
        return recorder, usage

    for streamed, (recorder, usage) in (
        (False, run(lambda model, config: model.invoke("hi", config))),
        (True, run(lambda model, config: model.invoke("hi", config), streaming=True)),
        (True, run(lambda model, config: list(model.stream("hi", config)))),
        (False, run(lambda model, config: list(model.stream("hi", config)), disable_streaming=True)),
    ):
        assert [token for token in recorder.tokens if token] == (["Hello", " there"] if streamed else [])
        (started,) = recorder.started
        assert started["invocation_params"]["temperature"] == 0.25
        (ended,) = recorder.ended
        assert ended.generations[0][0].message.content == "Hello there"
        assert usage.usage_metadata["fake"]["output_tokens"] == 2


def test_a_batch_runs_at_once_and_keeps_its_order(tokenizer: Any) -> None:
    class Together(FakeEngine):
        """Ends no request before both have arrived."""

        both = threading.Barrier(2, timeout=30)

        def submit(self, prompt_token_ids: Any, sampling: Any, hints: Any) -> Any:
            self.both.wait()
            text = str(self.tokenizer.decode(prompt_token_ids))
            engine = FakeEngine(self.tokenizer, "one" if "first" in text else "two")
            return engine.submit(prompt_token_ids, sampling, hints)

    answers = ChatMemDecay(engine=Together(tokenizer)).batch(["first", "second"])
    assert [answer.content for answer in answers] == ["one", "two"]


def test_reasoning_is_kept_apart_and_written_back(tokenizer: Any) -> None:
    engine = FakeEngine(tokenizer, "<think>", "\nA cat", "?\n</think>", "\n\nYes", ".")
    model = ChatMemDecay(engine=engine, reasoning_parser="native")
    for message in four_ways(model, "Is it?"):
        assert (message.content, message.additional_kwargs["reasoning_content"]) == ("Yes.", "A cat?")
        assert [block["type"] for block in message.content_blocks] == ["reasoning", "text"]
        assert message.usage_metadata["output_token_details"]["reasoning"] > 0
        model.invoke([HumanMessage("Is it?"), message, HumanMessage("Why?")])
        assert "<think>\nA cat?\n</think>\n\nYes." in engine.prompt
    assert ChatMemDecay(engine=engine).invoke("Is it?").content.startswith("<think>")  # the template knows no reasoning


def test_a_named_parser_reads_and_constrains_by_its_own_syntax(tokenizer: Any) -> None:
    engine = FakeEngine(tokenizer, *CALL)
    model = ChatMemDecay(engine=engine, tool_parser="hermes", reasoning_parser=None)
    for message in four_ways(model.bind_tools([add]), "add"):
        assert [(c["name"], c["args"]) for c in message.tool_calls] == [("add", {"a": 3, "b": 4})]
        assert message.response_metadata["finish_reason"] == "tool_calls"
    model.bind_tools([add, lookup], tool_choice="lookup").invoke("hi")
    assert "lookup" in engine.sampling.structured_outputs.structural_tag
    assert "add" not in engine.sampling.structured_outputs.structural_tag
    with pytest.raises(ConfigError, match="'hermess'"):
        model.bind_tools([add], tool_parser="hermess").invoke("hi")
