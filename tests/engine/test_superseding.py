"""A superseded tool result leaves the cache first, in the real engine."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from memdecay_adapters import ChatMemDecay, RegionRules, mark
from memdecay_adapters.langchain import build_prompt
from memdecay_agents.spans import Span, SpanFlag
from tests.engine.prompts import prose

pytestmark = pytest.mark.engine
BUDGET = 640


def call(name: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"id": name, "name": "read_file", "args": {"path": name[0]}}])


def result(name: str, seed: int) -> ToolMessage:
    return ToolMessage(prose(seed, sentences=12), tool_call_id=name, name="read_file")


FIRST: list[BaseMessage] = [
    SystemMessage("You read files."),
    HumanMessage("Compare the files a and b."),
    call("a1"),
    result("a1", 1),
    call("b1"),
    result("b1", 2),
]


def spans_of(engine: Any, messages: list[BaseMessage], rules: RegionRules) -> list[Span]:
    return build_prompt(messages, engine.tokenizer, config=engine.config, rules=rules).spans


@pytest.mark.parametrize("how", ["tag", "rule", "nothing"])
def test_the_superseded_result_goes_first_and_only_it(engine_named, how):
    engine = engine_named("sessions")
    engine.reset_prefix_cache()
    rules = RegionRules(newest_of_calls=("read_file",)) if how == "rule" else RegionRules()
    newest = result("b2", 3)
    second = [*FIRST, AIMessage("Read b again."), call("b2"), mark(newest, "tool_out", supersedes="b1")]
    if how != "tag":
        second[-1] = newest
    llm = ChatMemDecay(engine=engine, max_tokens=4, default_budget=BUDGET, region_rules=rules)

    llm.invoke(FIRST, thread_id=how)
    before = len(engine.ledger().entries())
    answer = llm.invoke(second, thread_id=how)
    assert answer.response_metadata["memdecay"]["continued_tokens"] > 0
    gone = engine.ledger().entries()[before:]
    assert gone

    spans = spans_of(engine, second, rules)
    results = [span for span in spans if span.region == "tool_out"]
    assert len(results) == 3
    flagged = [span for span in spans if span.flags & SpanFlag.SUPERSEDED]
    call_b1 = [span for span in spans if span.region == "tool_in" and span.end <= results[1].start][-1]
    in_b1 = [entry for entry in gone if call_b1.start - 16 < entry.token_start < results[1].end]
    if how == "nothing":
        assert flagged == []
        assert len(in_b1) < len(gone)
    else:
        assert [span[:3] for span in flagged] == [call_b1[:3], results[1][:3]]
        assert in_b1 == gone
