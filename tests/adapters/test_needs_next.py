"""What a turn's newest input says that the next turn will need, up to the hints of the request."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from memdecay_adapters.langchain.chat_model import ChatMemDecay
from memdecay_adapters.langchain.marking import mark, tag
from memdecay_adapters.langchain.tags import check_tag
from memdecay_agents.errors import TagError
from tests.adapters.fake_engine import FakeEngine

CALL = {"id": "c1", "name": "read_file", "args": {"path": "a"}}
HISTORY: list[BaseMessage] = [
    HumanMessage("Keep in mind: the door code is 7319.", id="m0"),
    AIMessage("", tool_calls=[CALL], id="m1"),
    ToolMessage("The file says: cobalt.", tool_call_id="c1", name="read_file"),
    AIMessage("Noted.", id="m3"),
]


def needed(fake: FakeEngine, *messages: BaseMessage) -> list[str]:
    """Texts of the tokens that the next turn will need."""
    ChatMemDecay(engine=fake).invoke(list(messages))
    ids, _, hints = fake.requests[-1]
    wish = hints.needs_next
    return [] if wish is None else [fake.tokenizer.decode(ids[start:end]) for start, end in wish.tokens]


@pytest.mark.parametrize("name", ["m0", HISTORY[0]])
def test_a_message_named_by_the_newest_input_is_needed(fake: FakeEngine, name: Any) -> None:
    (text,) = needed(fake, *HISTORY, mark(HumanMessage("Go on."), "user", needs_next=name))
    assert "7319" in text
    assert "cobalt" not in text


def test_a_call_names_what_called_and_what_it_gave(fake: FakeEngine) -> None:
    found = needed(fake, *HISTORY, HumanMessage([tag("Go on.", "user", needs_next=["c1", "unheard of"])]))
    assert "cobalt" in "".join(found)
    assert "7319" not in "".join(found)


def test_tags_of_an_earlier_turn_are_over_and_without_tags_nothing_is_said(fake: FakeEngine) -> None:
    said = mark(HumanMessage("Go on.", id="m4"), "user", needs_next="m0")
    assert len(needed(fake, *HISTORY, said)) == 1
    assert needed(fake, *HISTORY, said, AIMessage("I do."), HumanMessage("And then?")) == []
    assert needed(fake, *HISTORY, HumanMessage("Go on.")) == []
    assert "needs_next" not in fake.hints.to_extra_args()["memdecay"]


def test_a_tag_that_names_no_ids_is_refused() -> None:
    with pytest.raises(TagError, match="no id"):
        mark(HumanMessage("x"), "user", needs_next=HumanMessage("y"))
    with pytest.raises(TagError, match="'needs_next' must be a list of ids"):
        check_tag({"region": "user", "needs_next": "m0"}, ("user",), "here")
