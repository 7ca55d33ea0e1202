"""What an explanation says of a page, a token or a message is what happened to it."""

from __future__ import annotations

import json
from itertools import accumulate

import numpy as np
import pytest
from core_helpers import observation, session
from hypothesis import given, settings
from hypothesis import strategies as st

from memdecay_agents import EvictionReason, Explanation, MemDecayConfig, Span, SpanFlag, explain_session
from memdecay_agents.errors import ExplainError
from memdecay_agents.explaining import explain_entries, message_retention
from memdecay_agents.explanation import SessionExplanation
from memdecay_agents.explanation_file import load_explanation, save_explanation
from memdecay_agents.selection import plan_eviction

CONFIG = MemDecayConfig(page_size_tokens=16)


def played(budget=192, config=CONFIG, spans=None, messages=None, steps=40, seed=0):
    """A session that prefilled 320 tokens, decoded, and was held to its budget; and the pages that it holds."""
    spans = spans or [Span(0, 32, "system"), Span(32, 160, "tool_out"), Span(160, 320, "user")]
    messages = ((0, 32), (32, 160), (160, 312)) if messages is None else messages
    state = session(config, spans=spans, budget_tokens=budget, messages=messages)
    rng, held = np.random.default_rng(seed), []
    computed = 0

    def compute(n):
        nonlocal computed, held
        new = [page for page in range(-(-(computed + n) // 16)) if page >= -(-computed // 16)]
        plan = state.plan(computed, held, len(new) if n == 1 else 0)
        state.apply(plan, request_id="r")
        held = sorted({*held, *new} - set(plan.pages))
        state.note_held(held)
        state.on_computed(n, int(n == 1))
        computed += n
        index = [token for page in held for token in range(page * 16, min((page + 1) * 16, computed))]
        state.observe(observation(index, rng))

    for n in [160, 160, *[1] * steps]:
        compute(n)
    return state, held


def test_every_page_is_what_the_session_and_the_ledger_say():
    state, held = played()
    explained = explain_session(state, held)
    entries = {entry.page: entry for entry in state.ledger.entries()}
    assert entries
    assert [page.page for page in explained.pages] == list(range(-(-state.tokens.computed_tokens // 16)))
    for page in explained.pages:
        assert (page.state == "held") == (page.page in held)
        if page.state == "freed":
            entry = entries[page.page]
            assert page.freed.turn == entry.turn
            assert (page.freed.clock_ticks, page.freed.computed_tokens) == (entry.clock_ticks, entry.computed_tokens)
            assert sum(page.parts.values()) == pytest.approx(page.score, abs=1e-5)
            assert 0 <= page.evidence["age_ticks"] <= entry.clock_ticks
        else:
            assert page.pinned == (page.page < 2)
            assert (page.goes_after is None) == (page.pinned or page.protected)
    order = [page.page for page in sorted(explained.pages, key=lambda p: (p.goes_after is None, p.goes_after or 0))]
    view = state.view(state.tokens.computed_tokens, held)
    asked = plan_eviction(view, state.policy, pages_to_free=view.n_pages - state.budget_pages)
    if asked.order:
        assert order[: len(asked.order)] == list(asked.order)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.integers(8, 30), st.integers(0, 3))
@settings(max_examples=15, deadline=None)
def test_tokens_of_messages_add_up_to_what_is_held(lengths, budget_pages, seed):
    ends = [min(320, end) for end in accumulate(lengths)]
    messages = tuple(zip([0, *ends[:-1]], ends, strict=True))
    state, held = played(budget_pages * 16, messages=messages, seed=seed)
    explained = explain_session(state, held)
    summary = message_retention(state, held)
    computed = state.tokens.computed_tokens
    assert len(summary) == len(messages) + 1
    assert sum(map(sum, summary)) == computed, "messages and answer are all of the session"
    assert sum(kept for kept, _ in summary) == sum(min(computed, page * 16 + 16) - page * 16 for page in held)
    for number, (kept, gone) in enumerate(summary):
        one = explained.of(message=number)
        assert (one.tokens_held, one.tokens_freed) == (kept, gone)
        alone = explain_session(state, held, message=number).of(message=number)
        assert alone == one, "the pages of one message are explained as those of all"
        by_token = [explained.of(token=token).state for token in range(one.token_start, one.token_end)]
        assert (by_token.count("held"), by_token.count("freed")) == (kept, gone)


@pytest.mark.parametrize("policy", ["recency", "accumulated_attention", "key_norm", "paper"])
def test_the_budget_that_is_named_keeps_the_page_and_one_page_less_does_not(policy):
    """Exact where the order does not depend on the budget."""
    config = MemDecayConfig(page_size_tokens=16, policy=policy)
    state = session(config, spans=[Span(0, 320, "user")], budget_tokens=96)
    state.on_computed(320, 0)
    state.observe(observation(range(320), np.random.default_rng(1)))
    plan = state.plan(320, range(20), 1)
    view = state.view(320, range(20))
    entries = state.apply(plan)
    for entry in entries:
        for pages, goes in ((entry.keeping_pages, False), (entry.keeping_pages - 1, True)):
            again = plan_eviction(view, state.policy, budget_pages=pages, new_pages=1)
            assert (entry.page in again.pages) == goes
        (budget,) = [way for way in explain_entries([entry]).pages[0].kept_by if way.kind == "budget"]
        assert budget.amount == entry.keeping_pages * 16


def test_the_gap_is_to_the_lowest_page_that_stayed_quotas_included():
    state = session(CONFIG, spans=[Span(0, 160, "tool_out"), Span(160, 320, "user")], budget_tokens=160)
    state.on_computed(320, 0)
    state.observe(observation(range(320), np.random.default_rng(2)))
    plan = state.plan(320, range(20), 0)
    entries = state.apply(plan)
    final = {page: plan.scores[page] + quota for page, quota in zip(plan.order, plan.quota, strict=True)}
    stayed = min(value for page, value in final.items() if page not in plan.pages)
    assert any(entry.inside_quota is False and entry.quota < 0 for entry in entries)
    for entry in entries:
        (gap,) = [way.amount for way in explain_entries([entry]).pages[0].kept_by if way.kind == "score"]
        assert gap == pytest.approx(stayed - final[entry.page], abs=1e-5)
        assert gap >= 0


@pytest.mark.parametrize(
    ("policy", "factor", "reason"),
    [("memdecay", 0.1, "superseded"), ("paper", 0.1, "superseded"), ("memdecay", 1.0, "over_budget"),
     ("recency", 0.1, "over_budget")],
)  # fmt: skip
def test_a_superseded_page_is_booked_as_such_where_that_is_why_it_went(policy, factor, reason):
    config = MemDecayConfig(page_size_tokens=16, policy=policy, superseded_factor=factor)
    spans = [Span(0, 160, "tool_out", SpanFlag.SUPERSEDED), Span(160, 320, "user")]
    state = session(config, spans=spans, budget_tokens=128)
    state.on_computed(320, 0)
    entries = state.apply(state.plan(320, range(20), 0))
    assert {entry.reason.value for entry in entries if entry.superseded} == {reason}
    assert {entry.reason.value for entry in entries if not entry.superseded} == {"over_budget"}
    assert state.ledger.summary().evicted_by_reason[reason] >= 4
    pressed = state.plan(320, [page for page in range(20) if page not in {e.page for e in entries}], pages_to_free=2)
    assert {entry.reason for entry in state.apply(pressed, reason=EvictionReason.pool_pressure)} == {
        EvictionReason.pool_pressure
    }


def test_files_hold_the_same_and_a_ledger_knows_the_freed_pages(tmp_path):
    state, held = played()
    explained = explain_session(state, held)
    save_explanation(explained, tmp_path / "e.json")
    assert load_explanation(tmp_path / "e.json") == explained
    state.ledger.to_jsonl(tmp_path / "l.jsonl")
    by_ledger = load_explanation(tmp_path / "l.jsonl", state.key)
    assert by_ledger.pages == tuple(page for page in explained.pages if page.state == "freed")
    gone = by_ledger.pages[0]
    assert by_ledger.of(token=gone.token_start + 1).state == "freed"
    assert by_ledger.of(page=held[0]).state == "unknown", "a ledger does not know what is held"
    answer = explained.of(page=gone.page)
    assert Explanation.model_validate_json(answer.model_dump_json()) == answer
    json.dumps(answer.model_dump(mode="json"), allow_nan=False)


def test_one_entry_alone_is_a_ledger_too(tmp_path):
    state, _ = played()
    (tmp_path / "one.jsonl").write_text(state.ledger.entries()[0].model_dump_json() + "\n")
    assert load_explanation(tmp_path / "one.jsonl").pages[0].page == state.ledger.entries()[0].page


@pytest.mark.parametrize(
    "question", [{}, {"page": 1, "token": 2}, {"message": 4}, {"message": -5}, {"page": 10_000}, {"token": -1}]
)
def test_what_cannot_be_answered_says_why(question):
    state, held = played()
    with pytest.raises(ExplainError) as told:
        explain_session(state, held).of(**question)
    assert told.value.remedy


def test_a_file_that_is_neither_and_a_session_that_is_not_there(tmp_path):
    state, held = played()
    save_explanation(explain_session(state, held), tmp_path / "e.json")
    (tmp_path / "bad.json").write_text('{"session": "a", "kind": 3}')
    for path, key in ((tmp_path / "none", None), (tmp_path / "bad.json", None), (tmp_path / "e.json", "other/x/y/")):
        with pytest.raises(ExplainError):
            load_explanation(path, key)
    with pytest.raises(ExplainError, match="no page of it"):
        explain_entries(state.ledger.entries(), "other/x/y/")
    with pytest.raises(ExplainError, match="a ledger knows no messages"):
        explain_entries(state.ledger.entries()).of(message=0)


def test_a_session_that_told_no_messages_has_none():
    state, held = played(messages=())
    assert message_retention(state, held) == ()
    with pytest.raises(ExplainError, match="did not tell"):
        explain_session(state, held, message=0)


def test_a_page_whose_record_has_gone_is_lost_not_unknown():
    state, held = played()
    state.ledger._entries.clear()
    explained = explain_session(state, held)
    lost = [page for page in explained.pages if page.state == "lost"]
    assert lost
    assert explained.of(page=lost[0].page).state == "freed"
    assert isinstance(explained, SessionExplanation)


def test_a_page_that_came_back_says_when_and_why_and_one_that_may_says_where_it_is():
    state, held = played()
    first, second, third = state.ledger.entries()[:3]
    found = {"reason": EvictionReason.swapped_in, "turn": 4, "score": 1.25, "parts": {"evidence": 1.25}}
    wished = {**found, "score": 0.0, "parts": {"evidence": 0.0}}
    state.restore([first.model_copy(update=found), second.model_copy(update=wished)])
    held = sorted({*held, first.page, second.page})
    explained = explain_session(state, held, host_pages={third.page})
    by_page = {page.page: page for page in explained.pages}
    assert by_page[first.page].state == "held"
    assert by_page[first.page].came_back.evidence == 1.25
    assert by_page[second.page].came_back.evidence is None
    assert "came back in turn 4 (by evidence)" in explained.of(page=first.page).text
    assert "(as it was asked for)" in explained.of(page=second.page).text
    assert by_page[third.page].state == "freed"
    assert by_page[third.page].on_host
    assert "copy in host memory" in explained.of(page=third.page).text
    assert not any(page.on_host or page.came_back for page in explained.pages[: min(first.page, second.page)])
    alone = {page.page: page for page in explain_entries(state.ledger.moves()).pages}
    assert (alone[first.page].state, alone[third.page].state) == ("held", "freed")
    assert alone[first.page].came_back == by_page[first.page].came_back

    assert explain_entries(state.ledger.entries()).of(page=first.page).state == "freed"
