"""The ledger of evictions: planted faults are caught, lawful histories balance, files come back."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from memdecay_agents import EvictionReason, Ledger, LedgerEntry
from memdecay_agents.errors import LedgerError

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
