"""What one message says about another: superseding, and a tool call and its result as one unit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    messages_from_dict,
    messages_to_dict,
)

from memdecay_adapters.langchain import RegionRules, build_prompt, mark, tag
from memdecay_adapters.langchain.regions import MessageParts, infer_parts
from memdecay_adapters.langchain.units import settle_units
from memdecay_adapters.langchain.warn import reset_warnings
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import TagError
from memdecay_agents.regions import REGIONS
from memdecay_agents.spans import SpanFlag
from tests.adapters.conversations import conversations

CONFIG = MemDecayConfig()
NO_RULES = RegionRules(newest_of_regions=())


def settle(messages: list[BaseMessage], rules: RegionRules = NO_RULES) -> list[MessageParts]:
    return settle_units(messages, [infer_parts(message, REGIONS, rules=rules) for message in messages], rules)


def superseded(messages: list[BaseMessage], rules: RegionRules = NO_RULES) -> list[int]:
    """Numbers of the messages all of whose text is superseded, header and footer included."""
    found = []
    for number, parts in enumerate(settle(messages, rules)):
        labels = [part.label for part in parts.text] + [parts.default]
        if all(label.flags & SpanFlag.SUPERSEDED for label in labels):
            found.append(number)
    return found


def call_flags(messages: list[BaseMessage], number: int, rules: RegionRules = NO_RULES) -> list[SpanFlag]:
    return [label.flags for label in settle(messages, rules)[number].calls]


def calling(*calls: tuple[str, str, dict[str, Any]], **fields: Any) -> AIMessage:
    tool_calls = [{"id": call_id, "name": name, "args": args} for call_id, name, args in calls]
    return AIMessage(fields.pop("content", ""), tool_calls=tool_calls, **fields)


def result(call_id: str, name: str = "read_file", text: str = "text", **fields: Any) -> ToolMessage:
    return ToolMessage(text, tool_call_id=call_id, name=name, **fields)


READS: list[BaseMessage] = [
    HumanMessage("Look at a and b.", id="m0"),
    calling(("c1", "read_file", {"path": "a"}), ("c2", "read_file", {"path": "b"}), id="m1"),
    result("c1", text="old a"),
    result("c2", text="b"),
    calling(("c3", "read_file", {"path": "a"}), id="m4"),
]


@pytest.mark.parametrize("replaced", ["c1", READS[2]])
def test_a_result_supersedes_an_earlier_one_and_its_call(replaced: Any) -> None:
    messages = [*READS, mark(result("c3"), "tool_out", supersedes=replaced)]
    assert superseded(messages) == [2]
    assert call_flags(messages, 1) == [SpanFlag.SUPERSEDED, SpanFlag.NONE]
    assert call_flags(messages, 4) == [SpanFlag.NONE]


def test_a_superseded_message_takes_its_calls_and_their_results_along() -> None:
    messages = [*READS, mark(HumanMessage("Forget all that."), "user", supersedes=["m1", "m0", "unheard of"])]
    assert superseded(messages) == [0, 1, 2, 3]
    assert call_flags(messages, 1) == [SpanFlag.SUPERSEDED] * 2


def test_only_what_stands_earlier_is_superseded() -> None:
    first = mark(HumanMessage("x", id="m0"), "user", supersedes=["m0", "m1", "c1"])
    assert superseded([first, *READS[1:]]) == []
    own = mark(result("c1"), "tool_out", supersedes="c1")
    assert superseded([*READS[:2], own]) == []


def test_an_id_that_a_model_uses_again_is_the_latest_call_before() -> None:
    rounds = [calling(("call_0", "t", {})), result("call_0", "t")]
    messages = [*rounds, *rounds, calling(("call_0", "t", {})), mark(result("call_0"), "tool_out", supersedes="call_0")]
    assert superseded(messages) == [3]
    assert [call_flags(messages, n) for n in (0, 2, 4)] == [[SpanFlag.NONE], [SpanFlag.SUPERSEDED], [SpanFlag.NONE]]


def test_a_result_whose_call_was_trimmed_away_can_be_superseded() -> None:
    assert superseded([result("c1"), mark(HumanMessage("x"), "user", supersedes="c1")]) == [0]


def test_blocks_and_parts_supersede_and_stale_ones_do_not() -> None:
    block = HumanMessage([tag("Plan B.", "plan", supersedes="m0"), "Go."])
    part = mark(HumanMessage("Plan B. Go."), [(0, 7, "plan")], supersedes="m0")
    for message in (block, part):
        stored = messages_from_dict(json.loads(json.dumps(messages_to_dict([message]))))
        assert superseded([READS[0], *stored]) == [0]
    reset_warnings()
    stale = part.model_copy(update={"content": "Something else."})
    with pytest.warns(UserWarning, match="does not match"):
        assert superseded([READS[0], stale]) == []


def test_what_has_no_id_cannot_be_named() -> None:
    with pytest.raises(TagError, match="no id"):
        mark(HumanMessage("x"), "user", supersedes=HumanMessage("y"))


TODO = "write_todos"
PLANS: list[BaseMessage] = [
    calling(("p1", TODO, {"todos": ["a"]})),
    result("p1", TODO),
    calling(("p2", TODO, {"todos": ["a", "b"]})),
    result("p2", TODO),
]


def test_a_newer_todo_list_supersedes_the_older_one_and_its_call() -> None:
    assert superseded(PLANS, RegionRules()) == [1]
    assert call_flags(PLANS, 0, RegionRules()) == [SpanFlag.SUPERSEDED]
    assert call_flags(PLANS, 2, RegionRules()) == [SpanFlag.NONE]
    assert superseded(PLANS, NO_RULES) == []


def test_a_failed_todo_list_supersedes_nothing() -> None:
    failed = result("p2", TODO, status="error")
    assert superseded([*PLANS[:3], failed], RegionRules()) == []


def test_plans_of_different_authors_stand_side_by_side() -> None:
    def plan(name: str | None) -> AIMessage:
        return mark(AIMessage("Do it.", name=name), "plan")

    messages = [plan("planner"), plan("critic"), plan("planner"), *PLANS[2:], plan(None)]
    assert superseded(messages, RegionRules()) == [0]


def test_only_the_plan_in_an_older_message_is_superseded() -> None:
    old = HumanMessage([tag("Plan A.", "plan"), "Why not?"])
    new = HumanMessage([tag("Plan B.", "plan"), "And now?"])
    flags = [[part.label.flags for part in parts.text] for parts in settle([old, new], RegionRules())]
    assert flags == [[SpanFlag.SUPERSEDED, SpanFlag.NONE], [SpanFlag.NONE, SpanFlag.NONE]]


def test_tools_whose_newest_result_counts() -> None:
    messages = [*READS, result("c3", text="new a")]
    assert superseded(messages, RegionRules(newest_of_calls=("read_*",))) == [2]
    assert superseded(messages, RegionRules(newest_of_tools=("read_file",))) == [2, 3]
    assert superseded(messages, RegionRules(newest_of_tools=("write_*",))) == []
    failed = [*READS, result("c3", status="error")]
    assert superseded(failed, RegionRules(newest_of_calls=("*",))) == []


def test_a_pinned_result_pins_its_call_and_a_pinned_call_its_result() -> None:
    by_result = [*READS[:2], mark(result("c1"), "tool_out", pinned=True), READS[3]]
    assert call_flags(by_result, 1) == [SpanFlag.PINNED, SpanFlag.NONE]
    assert [parts.default.flags for parts in settle(by_result)] == [0, 0, SpanFlag.PINNED, 0]
    by_call = [READS[0], mark(READS[1], "scratchpad", pinned=True), *READS[2:4]]
    assert [parts.default.flags for parts in settle(by_call)] == [0] + [SpanFlag.PINNED] * 3


def test_pins_and_superseding_add_up() -> None:
    pinned = mark(result("c1"), "tool_out", pinned=True)
    messages = [*READS[:2], pinned, mark(HumanMessage("x"), "user", supersedes="c1")]
    assert settle(messages)[2].default.flags == SpanFlag.PINNED | SpanFlag.SUPERSEDED


@given(conversations(), st.sampled_from([RegionRules(), RegionRules(newest_of_tools=("*",))]), st.integers(0, 20))
def test_flags_never_change_regions_or_text_and_the_newest_stays(
    messages: list[BaseMessage], rules: RegionRules, cut: int
) -> None:
    inferred = [infer_parts(message, REGIONS, rules=rules) for message in messages]
    settled = settle_units(messages, inferred, rules)
    for before, after in zip(inferred, settled, strict=True):
        for a, b in zip((*before.text, *before.reasoning), (*after.text, *after.reasoning), strict=True):
            assert (a.text, a.label.region) == (b.text, b.label.region)
        assert [label.region for label in before.calls] == [label.region for label in after.calls]
    results = [number for number, message in enumerate(messages) if isinstance(message, ToolMessage)]
    named = {name for parts in inferred for name in parts.supersedes}
    if results and getattr(messages[results[-1]], "tool_call_id", "") not in named:
        assert not settled[results[-1]].default.flags & SpanFlag.SUPERSEDED
    # what is superseded stays so when the conversation grows
    shorter = settle_units(messages[: cut % len(messages)], inferred[: cut % len(messages)], rules)
    for early, late in zip(shorter, settled, strict=False):
        assert early.default.flags in late.default.flags


def test_superseded_spans_reach_the_prompt_for_calls_as_text_too(tokenizer: Any) -> None:
    messages = [SystemMessage("Rules."), *READS, mark(result("c3", text="new a"), "tool_out", supersedes="c1")]
    prompt = build_prompt(messages, tokenizer, config=CONFIG)
    flagged = [
        (tokenizer.decode(prompt.token_ids[span.start : span.end]), span.region)
        for span in prompt.spans
        if span.flags == SpanFlag.SUPERSEDED
    ]
    assert flagged == [
        ('<tool_call>\n{"name": "read_file", "arguments": {"path": "a"}}\n</tool_call>', "tool_in"),
        ("<|im_start|>tool\nold a<|im_end|>\n", "tool_out"),
    ]
