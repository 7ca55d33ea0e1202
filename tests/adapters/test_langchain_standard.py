"""LangChain's own suites for chat models (langchain-tests): fields without an engine, calls of the real small model.

The model is SmolLM2-135M-Instruct, float32. Greedy, it repeats itself for ever inside the strings of a schema; a
repetition penalty ends them. Tests that the suite skips by itself are those of images, audio, PDFs (the engine
refuses such blocks, see below) and of settings from environment variables, which there are none of.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from memdecay_adapters.langchain.chat_model import ChatMemDecay
from memdecay_agents.errors import UnsupportedError

SAMPLING: dict[str, Any] = {"repetition_penalty": 1.1, "max_tokens": 48}


class TestChatMemDecayUnit(ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatMemDecay


@pytest.mark.engine
class TestChatMemDecayIntegration(ChatModelIntegrationTests):
    engine: ClassVar[Any] = None

    @pytest.fixture(autouse=True)
    def real_engine(self, engine: Any) -> None:
        type(self).engine = engine

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatMemDecay

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"engine": self.engine, **SAMPLING}

    @property
    def supports_json_mode(self) -> bool:
        return True

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


def answered(model: ChatMemDecay, question: Any, stream: bool) -> AIMessage:
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
def test_the_agent_loop_with_a_required_call(engine: Any) -> None:
    """The suite's agent loop, call by call: what fails in it unforced is the choice to call, and nothing else."""
    model = ChatMemDecay(engine=engine, **SAMPLING)
    messages: list[BaseMessage] = [HumanMessage("What is the weather in San Francisco, CA?")]
    unforced = model.bind_tools([get_weather]).invoke(messages)
    assert unforced.content, "the model could call, and chose to write text"
    call_message = model.bind_tools([get_weather], tool_choice="any").invoke(messages)
    (call,) = (block for block in call_message.content_blocks if block["type"] == "tool_call")
    result = get_weather.invoke(call_message.tool_calls[0])
    assert isinstance(result, ToolMessage)
    assert call["args"]["location"] in result.content
    answer = model.bind_tools([get_weather]).invoke([*messages, call_message, result])
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
