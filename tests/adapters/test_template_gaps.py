"""What a template refuses or drops gets a form that comes out; what cannot be mended is said."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from memdecay_adapters.langchain.marking import mark
from memdecay_adapters.langchain.prompt import build_prompt
from memdecay_adapters.langchain.region_rules import RegionRules
from memdecay_adapters.langchain.templates.render import fallback_count
from memdecay_adapters.langchain.token_count import count_prompt_tokens
from memdecay_adapters.langchain.warn import MemDecayWarning, reset_warnings
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ConfigError, UnsupportedError
from tests.adapters.families import make_family

CONFIG = MemDecayConfig()


def call(call_id: str) -> dict[str, Any]:
    return {"name": "search_web", "args": {"query": "ARGWORD"}, "id": call_id}


CALLING = AIMessage("SAIDWORD", tool_calls=[call("c1")], additional_kwargs={"reasoning_content": "because"})
RESULT = ToolMessage("RESULTWORD", tool_call_id="c1")
AGAIN = AIMessage("AGAINWORD", tool_calls=[call("c2")])
SECOND = ToolMessage("SECONDWORD", tool_call_id="c2")
GAPS: dict[str, list[BaseMessage]] = {
    "text beside a call": [HumanMessage("Go."), CALLING, RESULT],
    "text beside an older call": [HumanMessage("Go."), CALLING, RESULT, AIMessage("DONEWORD"), HumanMessage("On.")],
    "text beside a second call": [HumanMessage("Go."), CALLING, RESULT, AGAIN, SECOND],
    "a number as result": [HumanMessage("Go."), CALLING, ToolMessage("1234567", tool_call_id="c1")],
    "answer, then a call": [HumanMessage("Go."), AIMessage("FIRSTWORD"), CALLING, RESULT],
    "two systems": [SystemMessage("ONEWORD"), SystemMessage("TWOWORD"), HumanMessage("Go.")],
    "system later": [HumanMessage("Go."), AIMessage("So."), SystemMessage("LATERWORD"), HumanMessage("ASKWORD")],
    "system last": [HumanMessage("Go."), AIMessage("So."), SystemMessage("LASTWORD")],
    "only system": [SystemMessage("ONLYWORD")],
    "greeting first": [AIMessage("HELLOWORD"), HumanMessage("Go.")],
    "trimmed call": [RESULT, AIMessage("So."), HumanMessage("Go.")],
    "role of its own": [ChatMessage(role="critic", content="CRITICWORD"), HumanMessage("Go.")],
    "developer": [ChatMessage(role="developer", content="DEVWORD"), HumanMessage("Go.")],
}  # fmt: skip
FAMILIES = (
    "mistral-v3", "mistral-v13", "gpt-oss", "llama3.1", "qwen3.5", "cohere", "gemma", "gemma4", "deepseek-v3",
    "glm4moe",
)  # fmt: skip
_made: dict[str, Any] = {}


@pytest.mark.parametrize("name", FAMILIES)
def test_all_that_is_said_comes_out_of_the_template(name: str, tokenizer: Any) -> None:
    family = _made.setdefault(name, make_family(name, tokenizer))
    for gap, messages in GAPS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            prompt = build_prompt(messages, family.tokenizer, config=CONFIG)
        assert prompt.exact, gap
        for message in messages:
            assert str(message.content) in prompt.text, (gap, message)
        if any(message is CALLING for message in messages):
            assert "ARGWORD" in prompt.text, gap


QUESTION = mark(HumanMessage("context & apples. question?"), [(0, 17, "retrieval")], pinned=True)
LOOP = "{% for m in messages %}WRITE\n{% endfor %}"


@pytest.mark.parametrize(
    "expression", ["m.content|e", "m.content|escape", "m.content|urlencode", "m.content|wordwrap(200)"]
)
def test_filters_keep_the_tags(expression: str, tokenizer: Any) -> None:
    prompt = build_prompt(
        [QUESTION], tokenizer, config=CONFIG, chat_template=LOOP.replace("WRITE", "{{ " + expression + " }}")
    )
    assert prompt.exact
    assert prompt.spans[0].region == "retrieval"
    assert prompt.spans[-1].region == "user"


def test_tags_that_a_template_loses_are_found_again(tokenizer: Any) -> None:
    reset_warnings()
    template, before = LOOP.replace("WRITE", "{{ m.content.encode().decode() }}"), fallback_count()
    messages = [AIMessage("An answer."), QUESTION]
    with pytest.warns(MemDecayWarning, match="lose their origins"):
        prompt = build_prompt(messages, tokenizer, config=CONFIG, chat_template=template)
    assert fallback_count() == before + 1
    assert not prompt.exact
    texts = [(span.region, tokenizer.decode(prompt.token_ids[span.start : span.end])) for span in prompt.spans]
    assert ("retrieval", "context & apples.") in [(region, text.strip()) for region, text in texts]


def test_a_text_that_a_template_drops_is_warned_about(tokenizer: Any) -> None:
    reset_warnings()
    template = "{% for m in messages %}{% if m.role != 'tool' or loop.first %}{{ m.content }}{% endif %}{% endfor %}"
    template = template.replace("m.role != 'tool' or loop.first", "'SECRET' not in m.content")
    messages: list[BaseMessage] = [HumanMessage("Go."), AIMessage("SECRET words"), HumanMessage("On.")]
    with pytest.warns(MemDecayWarning, match=r"template \w+\) leaves out or rewrites the text of a AIMessage"):
        build_prompt(messages, tokenizer, config=CONFIG, chat_template=template)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_prompt(messages, tokenizer, config=CONFIG, chat_template=template)


def test_a_broken_template_names_its_line(tokenizer: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"line 2.*Correct that line"):
        build_prompt([HumanMessage("x")], tokenizer, config=CONFIG, chat_template="a\n{% for %}")


def test_a_result_without_a_name_is_of_the_tool_that_was_called(tokenizer: Any) -> None:
    rules = RegionRules(tool_regions={"search_web": "retrieval"})
    prompt = build_prompt(
        [HumanMessage("Go."), AIMessage("", tool_calls=[call("c1")]), RESULT], tokenizer, config=CONFIG, rules=rules
    )
    assert prompt.region_tokens["retrieval"] > 0
    assert "tool_out" not in prompt.region_tokens


@pytest.mark.parametrize("name", ["mistral-v3", "gpt-oss", "gemma"])
def test_counting_refuses_nothing(name: str, tokenizer: Any) -> None:
    own = _made.setdefault(name, make_family(name, tokenizer)).tokenizer
    refused = [HumanMessage("a"), AIMessage("", tool_calls=[call("c1"), call("c2")]), RESULT, HumanMessage("b"),
               ToolMessage("late", tool_call_id="c2")]  # fmt: skip
    assert count_prompt_tokens([], own, None, CONFIG, None) == 0
    for start in range(len(refused)):
        for end in range(start + 1, len(refused) + 1):
            assert count_prompt_tokens(refused[start:end], own, None, CONFIG, None) > 0


def test_what_the_template_refuses_together_is_counted_one_by_one(tokenizer: Any) -> None:
    template = (
        "{% if messages|length > 1 %}{{ raise_exception('one only') }}{% endif %}{{ messages[0].role }}: "
        "{{ messages[0].content }}"
    )
    messages = [HumanMessage("one two"), AIMessage("three")]
    counts = [count_prompt_tokens([m], tokenizer, None, CONFIG, template) for m in messages]
    assert count_prompt_tokens(messages, tokenizer, None, CONFIG, template) == sum(counts)


def test_a_rule_that_is_no_rule_is_refused_when_it_is_made() -> None:
    with pytest.raises(ConfigError, match="Between"):
        RegionRules(between=[("<a>", "</a>", "plan")])  # type: ignore[list-item]


def test_a_prompt_that_is_too_long_alone_is_not_told_to_answer_less() -> None:
    from memdecay_adapters.langchain.sampling import ContextLengthError, to_sampling_params

    with pytest.raises(ContextLengthError, match="Shorten the messages") as caught:
        to_sampling_params({}, prompt_tokens=600, max_model_len=512)
    assert "max_tokens" not in caught.value.remedy
    with pytest.raises(ContextLengthError, match="Lower max_tokens to at most 12"):
        to_sampling_params({"max_tokens": 20}, prompt_tokens=500, max_model_len=512)
