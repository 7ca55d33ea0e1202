"""A session's life: its budget holds, its ledger books every page, turns go on, rewinds and restarts."""

import numpy as np
import pytest
from core_helpers import observation, session
from hypothesis import given, settings
from hypothesis import strategies as st

from memdecay_agents import EvictionReason, MemDecayConfig, RequestHints, SessionState, Span
from memdecay_agents.errors import RegionError, SpanError

PAGE = 16


def run(state: SessionState, held: list[int], computed: int, steps: int, seed: int = 0) -> tuple[list[int], int]:
    """Compute ``steps`` positions one by one, evicting as the budget asks."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        new = [computed // PAGE] if computed % PAGE == 0 else []
        plan = state.plan(computed, held, len(new))
        state.apply(plan, request_id="r")
        held = sorted(set(held) - set(plan.pages)) + new
        state.on_computed(1, 1)
        computed += 1
        tokens = (np.asarray(held)[:, None] * PAGE + np.arange(PAGE)).ravel()
        state.observe(observation(tokens[tokens < computed], rng))
    state.note_held(held)
    return held, computed


def test_a_session_stays_within_its_budget_and_books_every_page():
    spans = [Span(0, 100, "system"), Span(100, 900, "tool_out"), Span(900, 960, "user")]
    state = session(spans=spans, budget_tokens=320)
    held, computed = run(state, [], 0, 1100)
    assert len(held) == state.budget_pages == state.peak_pages == 20
    assert set(range(7)) <= set(held)  # the pinned system pages
    assert state.held_pages == tuple(held)
    state.ledger.check_integrity({state.key: held})
    entries = state.ledger.entries()
    assert len(entries) == -(-1100 // PAGE) - 20
    for e in entries:
        assert (e.session, e.agent, e.request_id, e.reason) == (state.key, "a", "r", EvictionReason.over_budget)
        assert (e.token_start, e.token_end) == (e.page * PAGE, e.page * PAGE + PAGE)
        assert sum(e.regions.values()) == PAGE
        assert e.region == max(e.regions, key=e.regions.get) or len(e.regions) > 1
        assert sum(e.parts.values()) == pytest.approx(e.score, rel=1e-4)
        assert not e.pinned
        assert e.token_end <= e.computed_tokens <= computed
    assert state.budget_bound
    state.close()
    state.ledger.check_integrity({})


def test_a_roomy_budget_never_binds_and_full_has_none():
    state = session(budget_tokens=4096)
    run(state, [], 0, 320)
    assert not state.budget_bound
    assert state.ledger.entries() == []
    full = session(MemDecayConfig(policy="full"), budget_tokens=64)
    held, _ = run(full, [], 0, 320)
    assert full.budget_pages is None
    assert len(held) == 20


def test_pool_pressure_frees_pages_within_the_budget():
    state = session(budget_tokens=4096)
    held, computed = run(state, [], 0, 320)
    plan = state.plan(computed, held, pages_to_free=3)
    entries = state.apply(plan, reason=EvictionReason.pool_pressure)
    assert [e.reason for e in entries] == [EvictionReason.pool_pressure] * 3
    assert not state.budget_bound
    refused = state.plan(computed, [0, 19], pages_to_free=1, allow_partial=False)
    assert refused.shortfall_pages == 1
    assert state.apply(refused) == []


def test_a_run_after_a_preemption_is_as_a_first_run():
    spans = [Span(0, 100, "system"), Span(100, 640, "tool_out")]
    state = session(spans=spans, budget_tokens=256)
    run(state, [], 0, 640)
    first = state.ledger.entries()
    state.reset_cache()
    assert state.held_pages == ()
    held, _ = run(state, [], 0, 640)
    assert state.ledger.entries()[len(first) :] == first
    state.ledger.check_integrity({state.key: held})


def test_two_sessions_do_not_change_each_other():
    alone = session(budget_tokens=128)
    run(alone, [], 0, 320)
    one, other = session(budget_tokens=128), session(budget_tokens=96, spans=[Span(0, 500, "plan")])
    run(other, [], 0, 500, seed=5)
    run(one, [], 0, 320)
    assert one.ledger.entries() == alone.ledger.entries()


def test_a_second_turn_goes_on_where_the_first_ended():
    state = session(spans=[Span(0, 100, "system"), Span(100, 200, "user")], budget_tokens=4096)
    held, _ = run(state, [], 0, 230)
    hints = RequestHints(agent="a", turn=1, base=229, budget_tokens=256, pins=["user"], spans=[Span(229, 400, "user")])
    state.begin_turn(hints, 400)
    assert (state.turn, state.tokens.n_tokens, state.tokens.computed_tokens) == (1, 400, 229)
    assert state.tokens.pinned[150]
    assert not state.tokens.pinned[210]
    held, _ = run(state, held, 229, 100)
    state.ledger.check_integrity({state.key: held})
    assert state.ledger.entries()
    assert {e.turn for e in state.ledger.entries()} == {1}


def test_turns_that_a_client_does_not_number_are_counted():
    state = session(spans=[Span(0, 100, "system"), Span(100, 320, "user")])
    seen = [state.turn]
    for end in (330, 340):
        state.begin_turn(RequestHints(agent="a", base=320, spans=[Span(320, end, "user")]), end)
        seen.append(state.turn)
    state.begin_turn(RequestHints(agent="a", turn=9, base=320, spans=[Span(320, 350, "user")]), 350)
    assert [*seen, state.turn] == [0, 1, 2, 9]


def test_a_rewind_gives_back_the_pages_beyond():
    state = session(budget_tokens=256)
    held, _ = run(state, [], 0, 320)
    state.begin_turn(RequestHints(turn=1, base=150, budget_tokens=256, spans=[Span(150, 330, "user")]), 330)
    held = [page for page in held if page < 10]
    state.ledger.check_integrity({state.key: held})
    held, _ = run(state, held, 150, 180)
    state.ledger.check_integrity({state.key: held})
    assert state.agent == "a"


def test_hints_that_do_not_fit_change_nothing():
    state = session()
    before = state.tokens.n_tokens
    with pytest.raises(SpanError, match=r"base 999 is beyond the 320 tokens.*Send base 0"):
        state.begin_turn(RequestHints(base=999, spans=[Span(999, 1100, "user")]), 1100)
    with pytest.raises(SpanError):
        state.begin_turn(RequestHints(base=320, spans=[Span(320, 350, "user")]), 360)
    with pytest.raises(RegionError):
        state.begin_turn(RequestHints(base=320, pins=["nonsense"], spans=[Span(320, 350, "user")]), 350)
    assert (state.tokens.n_tokens, state.turn) == (before, 0)


@settings(max_examples=4)
@given(st.integers(0, 99))
def test_the_same_session_gives_the_same_ledger(seed):
    ledgers = []
    for _ in range(2):
        state = session(budget_tokens=112, spans=[Span(0, 60, "plan"), Span(60, 200, "retrieval")])
        run(state, [], 0, 200, seed)
        ledgers.append(state.ledger.entries())
    assert ledgers[0] == ledgers[1]
