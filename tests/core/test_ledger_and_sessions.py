import numpy as np
import pytest
from core_helpers import observation, session
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from memdecay_agents import EvictionReason, Ledger, LedgerEntry, MemDecayConfig, RequestHints, SessionState, Span
from memdecay_agents.errors import LedgerError, RegionError, SpanError

CONFIG = MemDecayConfig()
PAGE = 16


def entry(page: int, *, session: str = "s", pinned: bool = False, reason=EvictionReason.over_budget) -> LedgerEntry:
    return LedgerEntry(
        session=session,
        agent="a",
        turn=0,
        request_id="r",
        page=page,
        token_start=page * PAGE,
        token_end=(page + 1) * PAGE,
        regions={"user": 10, "plan": 6},
        region="user",
        pinned=pinned,
        clock_ticks=3,
        computed_tokens=100,
        score=0.5,
        parts={"structure": 0.5},
        order_position=0,
        reason=reason,
    )


def ledger_with(n_pages: int = 5) -> Ledger:
    ledger = Ledger()
    ledger.allocated("s", range(n_pages))
    return ledger


# --- planted faults ---------------------------------------------------------------------------


def test_a_sound_ledger_passes_and_adds_up():
    ledger = ledger_with()
    ledger.evict(entry(1))
    ledger.evict(entry(3, reason=EvictionReason.pool_pressure))
    ledger.check_integrity({"s": {0, 2, 4}})
    summary = ledger.summary("s")
    assert (summary.allocated, summary.held, summary.evicted, summary.released) == (5, 3, 2, 0)
    assert summary.evicted_by_region == {"user": 2}
    assert summary.evicted_tokens_by_region == {"user": 20, "plan": 12}
    assert summary.evicted_by_reason == {"over_budget": 1, "pool_pressure": 1}
    assert summary.freed_pinned == 0
    ledger.closed("s")
    ledger.check_integrity({})
    assert ledger.summary().released == 3
    assert ledger.summary("unknown").allocated == 0


def test_a_double_free_is_caught():
    ledger = ledger_with()
    ledger.evict(entry(1))
    ledger.evict(entry(1))
    with pytest.raises(LedgerError, match="page 1 was freed twice"):
        ledger.check_integrity()


def test_a_freed_pinned_page_is_caught():
    ledger = ledger_with()
    ledger.evict(entry(1, pinned=True))
    assert ledger.summary().freed_pinned == 1
    with pytest.raises(LedgerError, match=r"page 1 is pinned and was freed \(over_budget\)"):
        ledger.check_integrity()


def test_a_page_that_was_never_allocated_is_caught():
    ledger = ledger_with()
    ledger.evict(entry(7))
    with pytest.raises(LedgerError, match="page 7 was freed and never allocated"):
        ledger.check_integrity()


def test_an_eviction_without_an_entry_is_caught_against_the_engine():
    ledger = ledger_with()
    with pytest.raises(LedgerError, match=r"pages \[2\] are held by the ledger and not by the engine"):
        ledger.check_integrity({"s": {0, 1, 3, 4}})


def test_pages_the_ledger_does_not_know_are_caught_against_the_engine():
    with pytest.raises(LedgerError, match=r"session 'other': pages \[0\] are held by the engine and not by the ledger"):
        ledger_with().check_integrity({"s": range(5), "other": [0]})


def test_a_lost_entry_is_caught():
    ledger = ledger_with()
    ledger.evict(entry(1))
    ledger._entries.clear()
    with pytest.raises(LedgerError, match="0 entries for 1 evictions"):
        ledger.check_integrity()


def test_a_page_that_vanished_from_the_books_is_caught():
    ledger = ledger_with()
    ledger._accounts["s"].held.discard(4)
    with pytest.raises(LedgerError, match="5 pages allocated, but 4 held"):
        ledger.check_integrity()


def test_allocating_a_held_or_an_evicted_page_is_caught():
    ledger = ledger_with()
    ledger.allocated("s", [0])
    with pytest.raises(LedgerError, match="page 0 was allocated while it was held"):
        ledger.check_integrity()
    ledger = ledger_with()
    ledger.evict(entry(1))
    ledger.allocated("s", [1])
    with pytest.raises(LedgerError, match="page 1 came back after its eviction"):
        ledger.check_integrity()


def test_many_faults_are_counted():
    ledger = ledger_with(0)
    for page in range(20):
        ledger.evict(entry(page))
    with pytest.raises(LedgerError, match=r"and \d+ more"):
        ledger.check_integrity()


def test_sessions_do_not_mix():
    ledger = ledger_with()
    ledger.allocated("other", range(5))
    ledger.evict(entry(1))
    ledger.evict(entry(1, session="other"))
    ledger.closed("other")
    ledger.check_integrity({"s": {0, 2, 3, 4}})
    assert [e.session for e in ledger.entries("other")] == ["other"]
    assert ledger.entries(request_id="none") == []
    assert ledger.sessions() == ("s", "other")


def test_old_entries_go_and_totals_stay():
    ledger = Ledger(max_entries=2)
    ledger.allocated("s", range(5))
    for page in range(4):
        ledger.evict(entry(page))
    assert [e.page for e in ledger.entries()] == [2, 3]
    assert ledger.summary().evicted == 4
    ledger.check_integrity({"s": {4}})


def test_accounts_of_old_sessions_are_summed_up():
    ledger = Ledger(max_sessions=10)
    ledger.allocated("open", [0])
    for number in range(50):
        ledger.allocated(f"s{number}", range(3))
        ledger.evict(entry(1, session=f"s{number}"))
        ledger.closed(f"s{number}")
    assert len(ledger.sessions()) <= 10
    assert ledger.held_pages("open") == {0}
    summary = ledger.summary()
    assert (summary.allocated, summary.held, summary.evicted, summary.released) == (151, 1, 50, 100)
    assert summary.evicted_by_region == {"user": 50}
    assert ledger.summary("s49").evicted == 1
    ledger.check_integrity({"open": {0}})


class LedgerMachine(RuleBasedStateMachine):
    """Any lawful history balances; pages come back only after a rewind or a close."""

    def __init__(self):
        super().__init__()
        self.ledger = Ledger()
        self.held: set[int] = set()
        self.next_page = 0

    @rule(count=st.integers(1, 4))
    def allocate(self, count):
        new = range(self.next_page, self.next_page + count)
        self.ledger.allocated("s", new)
        self.held |= set(new)
        self.next_page += count

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def evict(self, data):
        page = data.draw(st.sampled_from(sorted(self.held)))
        self.ledger.evict(entry(page))
        self.held.discard(page)

    @rule(data=st.data())
    def rewind(self, data):
        first = data.draw(st.integers(0, self.next_page))
        self.ledger.rewound("s", first)
        self.held = {page for page in self.held if page < first}
        self.next_page = first

    @rule()
    def close(self):
        self.ledger.closed("s")
        self.held, self.next_page = set(), 0

    @invariant()
    def balances(self):
        self.ledger.check_integrity({"s": self.held})
        assert self.ledger.held_pages("s") == self.held


TestLedgerMachine = LedgerMachine.TestCase


# --- files ------------------------------------------------------------------------------------


def test_a_ledger_survives_its_file(tmp_path):
    ledger = ledger_with()
    ledger.evict(entry(1))
    ledger.evict(entry(2, reason=EvictionReason.superseded))
    path = tmp_path / "ledger.jsonl"
    path.write_text("older\n")
    ledger.to_jsonl(path)
    assert Ledger.from_jsonl(path) == ledger.entries()
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.jsonl"]


@pytest.mark.parametrize(("line", "message"), [("{", "line 3"), ('{"page": 3}', "line 3, field session: is missing")])
def test_a_damaged_file_names_the_line(tmp_path, line, message):
    ledger = ledger_with()
    ledger.evict(entry(1))
    path = tmp_path / "ledger.jsonl"
    ledger.to_jsonl(path)
    with path.open("a") as file:
        file.write("\n" + line + "\n")
    with pytest.raises(LedgerError, match=message):
        Ledger.from_jsonl(path)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    ledger = ledger_with()
    ledger._entries.append("not an entry")
    path = tmp_path / "ledger.jsonl"
    path.write_text("older\n")
    with pytest.raises(AttributeError):
        ledger.to_jsonl(path)
    assert path.read_text() == "older\n"
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.jsonl"]


# --- a session's life -------------------------------------------------------------------------


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
