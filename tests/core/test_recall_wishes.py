"""Wishes for recall in hints, and pages that come back in a session's ledger."""

from __future__ import annotations

import pytest
from core_helpers import session
from hypothesis import given
from hypothesis import strategies as st

from memdecay_agents import MemDecayConfig, RequestHints
from memdecay_agents.errors import HintsError, LedgerError, RegionError
from memdecay_agents.ledger import EvictionReason, Ledger, LedgerEntry
from memdecay_agents.recall.wishes import MAX_RANGES, RecallWish, wished_pages
from memdecay_agents.spans import Span

SPANS = (Span(0, 40, "system"), Span(40, 100, "user"))
RANGES = st.lists(
    st.tuples(st.integers(0, 90), st.integers(1, 10)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=5
)
WISHES = st.builds(
    RecallWish, regions=st.lists(st.sampled_from(["user", "system", "plan"]), max_size=3).map(tuple),
    tokens=RANGES.map(tuple),
)  # fmt: skip


@given(recall=st.none() | WISHES, needs_next=st.none() | WISHES)
def test_wishes_survive_the_message_and_are_left_out_where_there_are_none(recall, needs_next):
    hints = RequestHints(spans=SPANS, recall=recall, needs_next=needs_next)
    message = hints.to_extra_args()
    assert RequestHints.from_extra_args(message) == hints
    assert ("recall" in message["memdecay"]) == (recall is not None)
    assert ("needs_next" in message["memdecay"]) == (needs_next is not None)


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"region": ["user"]}, "recall.region: unknown key"),
        ({"tokens": [[5, 5]]}, "empty"),
        ({"tokens": [[-1, 5]]}, "recall.tokens"),
        ({"tokens": [[1.5, 5]]}, "recall.tokens"),
        ({"tokens": [[1]]}, "recall.tokens"),
        ({"regions": [""]}, "recall.regions"),
        ({"tokens": [[0, 1]] * (MAX_RANGES + 1)}, "recall.tokens"),
        ([0, 5], "should be a mapping"),
    ],
)
def test_a_malformed_wish_is_refused_with_its_field(wish, message):
    with pytest.raises(HintsError, match=message):
        RequestHints.from_extra_args({"memdecay": {"v": 1, "spans": [list(span) for span in SPANS], "recall": wish}})


def test_a_wish_that_names_nothing_known_is_refused():
    config = MemDecayConfig()
    with pytest.raises(RegionError, match="nowhere"):
        RequestHints(spans=SPANS, recall=RecallWish(regions=("nowhere",))).check(100, config)
    with pytest.raises(HintsError, match="names no region"):
        RequestHints(spans=SPANS, needs_next=RecallWish()).check(100, config)


@given(WISHES, WISHES)
def test_the_pages_of_two_wishes_are_those_of_both(one, two):
    state = session(MemDecayConfig(page_size_tokens=16))
    state.begin_turn(RequestHints(spans=SPANS), 100)
    pages = wished_pages(one + two, state.tokens)
    assert pages == wished_pages(one, state.tokens) | wished_pages(two, state.tokens)
    regions = {"system": range(40), "user": range(40, 100)}
    named = {t for r in one.regions for t in regions.get(r, ())} | {t for a, b in one.tokens for t in range(a, b)}
    assert wished_pages(one, state.tokens) == {token // 16 for token in named if token < 100}


def entry(page: int, reason: EvictionReason) -> LedgerEntry:
    return LedgerEntry(
        session="s", agent="a", turn=0, request_id="r", page=page, token_start=16 * page, token_end=16 * page + 16,
        regions={"user": 16}, region="user", pinned=False, clock_ticks=0, computed_tokens=0, score=0.0, parts={},
        order_position=0, reason=reason,
    )  # fmt: skip


def test_a_page_goes_and_comes_back_and_the_ledger_balances(tmp_path):
    ledger = Ledger()
    ledger.allocated("s", [0, 1])
    for _ in range(2):
        ledger.evict(entry(1, EvictionReason.swapped_out))
        ledger.check_integrity({"s": [0]})
        ledger.restored(entry(1, EvictionReason.swapped_in))
        ledger.check_integrity({"s": [0, 1]})
    totals = ledger.summary()
    assert (totals.evicted, totals.restored, totals.held, totals.allocated) == (2, 2, 2, 4)
    assert [e.reason for e in ledger.entries()] == ["swapped_out"] * 2
    assert [e.reason for e in ledger.returns("s", request_id="r")] == ["swapped_in"] * 2
    assert [e.reason for e in ledger.moves()] == ["swapped_out", "swapped_in"] * 2
    ledger.to_jsonl(tmp_path / "moves.jsonl")
    assert Ledger.from_jsonl(tmp_path / "moves.jsonl") == ledger.moves()
    ledger.closed("s")
    ledger.check_integrity({})


def test_a_page_that_comes_back_and_never_left_is_a_fault():
    ledger = Ledger()
    ledger.allocated("s", [0])
    ledger.restored(entry(0, EvictionReason.swapped_in))
    with pytest.raises(LedgerError, match="came back and was never evicted"):
        ledger.check_integrity()


def test_what_came_back_for_a_turn_stays_until_the_next_one():
    state = session(MemDecayConfig(page_size_tokens=16, recent_tokens=16))
    spans = (Span(0, 160, "user"),)
    state.begin_turn(RequestHints(spans=spans, budget_tokens=64), 160)
    state.on_computed(160, 1)
    state.kept_pages = frozenset({2, 3})
    plan = state.plan(160, range(10))
    assert not {2, 3} & set(plan.pages)
    assert len(plan.pages) == 6
    assert plan.shortfall_pages == 0
    state.begin_turn(RequestHints(base=160, spans=(Span(160, 170, "user"),), budget_tokens=64), 170)
    assert state.kept_pages == frozenset()
