"""The real engine answers what an agent still holds of a message: in Python and in the metadata of the answer."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from memdecay_adapters import ChatMemDecay
from memdecay_adapters.engine.explain_sessions import explain_for_tenant
from memdecay_agents import EvictionReason, Explanation, SessionExplanation
from memdecay_agents.errors import ExplainError
from tests.engine.prompts import prose

pytestmark = pytest.mark.engine
CONVERSATION: list[BaseMessage] = [
    SystemMessage("You read files."),
    HumanMessage("Compare the files a and b."),
    AIMessage("", tool_calls=[{"id": "a1", "name": "read_file", "args": {"path": "a"}}]),
    ToolMessage(prose(1, sentences=20), tool_call_id="a1", name="read_file"),
    AIMessage("", tool_calls=[{"id": "b1", "name": "read_file", "args": {"path": "b"}}]),
    ToolMessage(prose(2, sentences=20), tool_call_id="b1", name="read_file"),
]


@pytest.fixture(scope="module")
def asked(engine_house: Any) -> tuple[Any, Any]:
    """The engine, and the answer of a turn that lost half of its tokens."""
    engine = engine_house.get("chat")
    engine.reset_prefix_cache()
    llm = ChatMemDecay(engine=engine, max_tokens=24, default_budget=384)
    return engine, llm.invoke(CONVERSATION, thread_id="explained", ignore_eos=True)


def test_metadata_python_and_the_summary_say_the_same_of_every_message(asked: tuple[Any, Any]) -> None:
    engine, answer = asked
    about = answer.response_metadata["memdecay"]
    assert len(about["messages"]) == len(CONVERSATION) + 1, "the answer is the last"
    for number, (held, freed) in enumerate(about["messages"]):
        told = engine.explain(about["session"], message=number)
        assert isinstance(told, Explanation)
        assert (told.tokens_held, told.tokens_freed) == (held, freed)
    held, freed = about["messages"][0]
    assert (held > 0, freed) == (True, 0), "a system message is pinned"
    assert sum(freed for _, freed in about["messages"][1:]) > 0
    last = engine.explain(about["session"], message=-1)
    assert last.tokens_held > 0


def test_a_freed_page_names_when_why_and_what_would_have_kept_it(asked: tuple[Any, Any]) -> None:
    engine, answer = asked
    about = answer.response_metadata["memdecay"]
    whole = engine.explain(about["session"])
    assert isinstance(whole, SessionExplanation)
    freed = {page.page: page for page in whole.pages if page.state == "freed"}
    entries = {entry.page: entry for entry in engine.ledger().entries(about["session"])}
    assert freed.keys() == entries.keys()
    for number, page in freed.items():
        assert page.freed is not None
        assert page.freed.reason is EvictionReason.over_budget
        assert page.freed.request_id == about["request_id"]
        assert page.freed.step
        assert page.freed.computed_tokens >= page.token_end
        assert page.parts.keys() == {"structure", "information", "key_norm", "salience", "neighbours", "mentions"}
        assert sum(page.parts.values()) == pytest.approx(page.score, abs=1e-4)
        assert page.evidence["key_norm"] > 0, "measured before it went"
        assert page.parts["information"] > 0, "its token ids were known"
        assert {way.kind for way in page.kept_by} >= {"budget", "pin"}
        assert engine.explain(about["session"], page=number).state == "freed"
    held = [page for page in whole.pages if page.state == "held"]
    assert len(held) == about["pages_held"]
    assert any(page.goes_after is not None for page in held)


def test_no_other_tenant_and_no_other_session_is_explained(asked: tuple[Any, Any]) -> None:
    engine, answer = asked
    key = answer.response_metadata["memdecay"]["session"]
    tenant, thread, agent, _ = key.split("/")

    def ask(who: str, **query: Any) -> dict[str, Any]:
        found: dict[str, Any] = engine.run_on_engine_thread(
            lambda _, internals: explain_for_tenant(internals.controller, who, query)
        )
        return found

    query = {"session": thread, "agent": agent}
    assert ask(tenant, **query)["session_explanation"]["session"] == key
    assert ask(tenant, **query, message=3)["explanation"]["subject"] == "message 3"
    assert "holds no pages" in ask("other", **query)["error"]["rule"]
    assert "error" in ask(tenant, **query, message=99)
    with pytest.raises(ExplainError):
        engine.explain(f"other/{thread}/{agent}/")


def test_a_session_knows_the_token_ids_of_all_that_it_computed(asked: tuple[Any, Any]) -> None:
    engine, answer = asked
    llm = ChatMemDecay(engine=engine, max_tokens=8, default_budget=384)
    rewound = [*CONVERSATION, answer, HumanMessage("And c?")], [*CONVERSATION, answer, HumanMessage("Or d, rather?")]
    for messages in rewound:  # goes on, then goes back behind the message and says something else
        llm.invoke(messages, thread_id="explained", ignore_eos=True)
        known = engine.run_on_engine_thread(
            lambda _, internals: [
                (session.token_ids.tolist(), session.state.tokens.counts.ids.tolist())
                for session in internals.controller.sessions
            ]
        )
        assert known
        assert all(computed == learnt for computed, learnt in known)


def test_a_closed_session_is_explained_by_the_ledger(asked: tuple[Any, Any]) -> None:
    engine, answer = asked
    key = answer.response_metadata["memdecay"]["session"]
    before = {page.page for page in engine.explain(key).pages if page.state == "freed"}
    engine.close_sessions()
    after = engine.explain(key)
    assert not after.complete
    assert {page.page for page in after.pages} == before
