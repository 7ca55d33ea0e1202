"""An answer that was generated with other ids than its text has keeps them in the next prompt, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from memdecay_adapters.langchain.kept_ids import IDS_KEY, Kept, encode_around, find_kept, ids_to_keep
from memdecay_adapters.langchain.prompt import build_prompt
from memdecay_agents import MemDecayConfig

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 3}}\n</tool_call>'
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}


def by_character(tokenizer: Any, text: str) -> list[int]:
    """Another tokenisation of a text: each character on its own."""
    return [i for char in text for i in tokenizer(char, add_special_tokens=False)["input_ids"]]


def answered(ids: Any, **more: Any) -> AIMessage:
    calls = [{"name": "add", "args": {"a": 3}, "id": "call_1"}]
    return AIMessage("", tool_calls=calls, response_metadata={"memdecay": {IDS_KEY: ids}}, **more)


def prompt_of(tokenizer: Any, answer: AIMessage) -> Any:
    messages = [
        SystemMessage("s"),
        HumanMessage(f"Do not be misled by {CALL}"),
        answer,
        ToolMessage("3", tool_call_id="call_1"),
    ]
    return messages, build_prompt(messages, tokenizer, tools=[TOOL], config=MemDecayConfig())


def test_the_next_prompt_is_the_first_one_and_the_generated_ids(tokenizer: Any) -> None:
    ids = by_character(tokenizer, CALL)
    messages, kept = prompt_of(tokenizer, answered(ids))
    _, plain = prompt_of(tokenizer, answered(None))
    first = build_prompt(messages[:2], tokenizer, tools=[TOOL], config=MemDecayConfig())
    start = len(first.token_ids)
    assert kept.token_ids[: start + len(ids)] == [*first.token_ids, *ids]
    assert plain.token_ids[: start + len(ids)] != kept.token_ids[: start + len(ids)]
    assert tokenizer.decode(kept.token_ids) == tokenizer.decode(plain.token_ids) == plain.text
    assert kept.exact
    # each of the answer's tokens has the region of its text
    regions = [span.region for span in kept.spans for _ in range(span.start, span.end)]
    assert len(regions) == len(kept.token_ids)
    assert set(regions[start : start + len(ids)]) == {"tool_in"}
    assert [r for r in regions if r != "tool_in"] == [
        region for span in plain.spans for region in [span.region] * (span.end - span.start) if region != "tool_in"
    ]


@pytest.mark.parametrize("ids", [None, [], "abc", [1, "2"], [True], [-1], [10**9], [2**70], [5, 6, 7], {"a": 1}])
def test_ids_that_do_not_spell_the_answer_change_nothing(tokenizer: Any, ids: Any) -> None:
    assert prompt_of(tokenizer, answered(ids))[1] == prompt_of(tokenizer, answered(None))[1]


def test_an_edited_answer_is_tokenised_anew(tokenizer: Any) -> None:
    ids = by_character(tokenizer, CALL)
    edited = answered(ids).model_copy(update={"tool_calls": [{"name": "add", "args": {"a": 4}, "id": "call_1"}]})
    expected = edited.model_copy(update={"response_metadata": {}})
    assert prompt_of(tokenizer, edited)[1] == prompt_of(tokenizer, expected)[1]


def test_only_what_differs_is_carried(tokenizer: Any) -> None:
    same = tokenizer(CALL, add_special_tokens=False)["input_ids"]
    other = by_character(tokenizer, CALL)
    assert ids_to_keep(tokenizer, [*same, tokenizer.eos_token_id], CALL) is None
    assert ids_to_keep(tokenizer, [*other, tokenizer.eos_token_id], CALL) == other
    assert ids_to_keep(tokenizer, other, "another text") is None
    assert ids_to_keep(tokenizer, [], "") is None


pieces = st.lists(st.sampled_from(["a", " b", "\n", "é", "東", "🙂", "{", '"', "x1", "  "]), min_size=1, max_size=8)


@settings(max_examples=150, deadline=None)
@given(before=pieces, answers=st.lists(pieces, max_size=3), after=pieces)
def test_any_text_around_any_answers_is_encoded_without_loss(
    tokenizer: Any, before: list[str], answers: list[list[str]], after: list[str]
) -> None:
    opening, text = "<|im_start|>assistant\n", "".join(before)
    messages = []
    for answer in answers:
        spelled = "".join(answer)
        text += opening + spelled + "<|im_end|>\n" + "".join(after)
        messages.append(answered(by_character(tokenizer, spelled)))
    kept = find_kept(messages, tokenizer, text, opening)
    assert [text[k.start : k.end] for k in kept] == ["".join(answer) for answer in answers]
    ids, offsets = encode_around(tokenizer, text, kept)
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert offsets.shape == (len(ids), 2)
    assert np.all(offsets[:, 0] <= offsets[:, 1])
    assert offsets[-1, 1] == len(text)
    assert isinstance(kept, list)
    assert all(isinstance(answer, Kept) and answer.ends[-1] == answer.end - answer.start for answer in kept)
