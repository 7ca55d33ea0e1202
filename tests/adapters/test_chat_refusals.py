"""What ChatMemDecay refuses before the engine sees it: long prompts, bad keywords, bad tags."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage

from memdecay_adapters.langchain.chat_model import ChatMemDecay
from memdecay_adapters.langchain.marking import mark
from memdecay_adapters.langchain.tool_choice import openai_tools
from memdecay_adapters.langchain.warn import MemDecayWarning, reset_warnings
from memdecay_agents.errors import BudgetError, ConfigError, RegionError, TagError, UnsupportedError
from tests.adapters.chat_calls import Person, add
from tests.adapters.fake_engine import FakeEngine


def test_a_prompt_that_does_not_fit_is_refused_before_the_engine(fake: FakeEngine) -> None:
    with pytest.raises(ContextOverflowError, match=r"prompt of \d+ tokens.*512 tokens.*Shorten the messages") as caught:
        ChatMemDecay(engine=fake).invoke("word " * 600)
    assert caught.value.code == "context_length"
    with pytest.raises(ContextOverflowError, match="max_tokens=500"):
        ChatMemDecay(engine=fake, max_tokens=500).invoke("hi")
    assert not fake.requests


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        ({"budgett": 3}, ConfigError, "'budgett'.*budget"),
        ({"budget": 0}, ConfigError, "'budget'.*FixedBudget.tokens.*greater than 0"),
        ({"budget": {"kind": "share"}}, ConfigError, "'budget'.*guaranteed_tokens"),
        ({"pin": ["sytem"]}, RegionError, "'sytem'.*system"),
        ({"output_region": "plam"}, RegionError, "'plam'"),
        ({"temperature": -1.0}, ConfigError, "temperature"),
        ({"model": "gpt-x"}, UnsupportedError, "'gpt-x'.*'fake'"),
        ({"tool_choice": "any"}, ConfigError, "no tool is bound"),
        ({"response_format": 3}, ConfigError, "response_format"),
        ({"logprobs": -1}, ConfigError, "logprobs=-1.*negative"),
        ({"logprobs": True, "top_logprobs": -2}, ConfigError, "top_logprobs=-2"),
        ({"reasoning_parser": "quen3"}, ConfigError, "'quen3'.*qwen3"),
    ],
)
def test_bad_keywords(fake: FakeEngine, call: dict[str, Any], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=f"(?s){says}"):
        ChatMemDecay(engine=fake).invoke("hi", **call)
    assert not fake.requests


def test_bad_fields_and_tools(fake: FakeEngine) -> None:
    with pytest.raises(RegionError, match="'sytem'"):
        ChatMemDecay(pin=["sytem"])
    with pytest.raises(BudgetError, match="budgets"):
        ChatMemDecay(budgets={"a": 0})
    with pytest.raises(ConfigError, match="engine_args"):
        ChatMemDecay(engine=fake, engine_args={"dtype": "float32"})
    model = ChatMemDecay(engine=fake)
    with pytest.raises(ConfigError, match=r"'sub' is no bound tool.*'add'"):
        model.bind_tools([add], tool_choice="sub")
    with pytest.raises(ConfigError, match="two tools"):
        model.bind_tools([add, {"name": "add", "description": "Another.", "parameters": {}}])
    assert len(openai_tools([add, add, Person, Person.model_json_schema()])) == 2
    with pytest.raises(ConfigError, match="web_search"):
        model.bind_tools([{"type": "web_search"}])
    with pytest.raises(ConfigError, match="schema"):
        model.with_structured_output(3)  # type: ignore[arg-type]


MARKED = mark(HumanMessage("Keep what stands here."), [(0, 4, "plan")])
STALE = MARKED.model_copy(update={"content": "Something else stands here now."})
UNKNOWN = HumanMessage("Text.", additional_kwargs={"memdecay": [{"region": "nonsense"}]})


@pytest.mark.parametrize("message", [STALE, UNKNOWN])
def test_tags_that_cannot_be_used_are_inferred_or_refused_where_the_user_wants_that(
    fake: FakeEngine, message: HumanMessage
) -> None:
    with pytest.raises(TagError):
        ChatMemDecay(engine=fake, tag_errors="raise").invoke([message])
    assert fake.requests == []
    reset_warnings()
    with pytest.warns(MemDecayWarning):
        ChatMemDecay(engine=fake).invoke([message])
    assert {span.region for span in fake.hints.spans} <= {"system", "user", "scratchpad"}
