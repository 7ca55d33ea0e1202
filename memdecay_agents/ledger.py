"""Every page's life, by session, and the check that it adds up.

    (absent) --allocated--> held --evict--> evicted          history, with its entry
                             |   --released/closed--> (absent)

Nothing here raises while the engine runs: what does not fit is kept as a fault, and ``check_integrity`` tells.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from memdecay_agents.errors import LedgerError
from memdecay_agents.ledger_entry import EvictionReason, LedgerEntry, read_jsonl, write_jsonl

__all__ = ["EvictionReason", "Ledger", "LedgerEntry", "LedgerSummary"]


@dataclass(frozen=True)
class LedgerSummary:
    """Totals of one session, or of all; counts are pages unless they say otherwise."""

    allocated: int = 0
    held: int = 0
    evicted: int = 0
    """Pages chosen and freed while their session lived."""
    released: int = 0
    """Pages freed with their session, by a preemption, or by a rewind."""
    freed_pinned: int = 0
    """Pinned pages among the evicted; anything but 0 is a fault."""
    evicted_by_region: dict[str, int] = field(default_factory=dict)
    evicted_tokens_by_region: dict[str, int] = field(default_factory=dict)
    evicted_by_reason: dict[str, int] = field(default_factory=dict)


@dataclass
class _Account:
    held: set[int] = field(default_factory=set)
    evicted: set[int] = field(default_factory=set)
    n_allocated: int = 0
    n_evicted: int = 0
    n_released: int = 0
    freed_pinned: int = 0
    by_region: Counter[str] = field(default_factory=Counter)
    tokens_by_region: Counter[str] = field(default_factory=Counter)
    by_reason: Counter[str] = field(default_factory=Counter)

    def add(self, other: _Account) -> None:
        """Add the totals of a session that holds nothing any more."""
        self.n_allocated += other.n_allocated
        self.n_evicted += other.n_evicted
        self.n_released += other.n_released
        self.freed_pinned += other.freed_pinned
        self.by_region += other.by_region
        self.tokens_by_region += other.tokens_by_region
        self.by_reason += other.by_reason


class Ledger:
    """Owned by one thread; what it hands out are copies.

    Args:
        max_entries: entries kept in memory (about 2 KB each); beyond, the oldest go. Totals keep counting.
        max_sessions: sessions with an account of their own; beyond, the oldest closed ones are summed up.
    """

    def __init__(self, max_entries: int = 50_000, max_sessions: int = 10_000) -> None:
        """Begin with no sessions."""
        self._max_sessions = max_sessions
        self._retired = _Account()
        self._accounts: dict[str, _Account] = {}
        self._entries: deque[LedgerEntry] = deque(maxlen=max_entries)
        self._faults: list[str] = []

    # --- events ---------------------------------------------------------------------------------

    def allocated(self, session: str, pages: Iterable[int]) -> None:
        """The session now holds these logical pages too."""
        account = self._accounts.setdefault(session, _Account())
        for page in pages:
            if page in account.held:
                self._fault(session, page, "was allocated while it was held")
            elif page in account.evicted:
                self._fault(session, page, "came back after its eviction, without a rewind or a reset")
            account.held.add(page)
            account.n_allocated += 1

    def evict(self, entry: LedgerEntry) -> None:
        """A page was chosen and freed."""
        account = self._accounts.setdefault(entry.session, _Account())
        if entry.page in account.held:
            account.held.remove(entry.page)
        elif entry.page in account.evicted:
            self._fault(entry.session, entry.page, "was freed twice")
        else:
            self._fault(entry.session, entry.page, "was freed and never allocated")
        if entry.pinned:
            account.freed_pinned += 1
            self._fault(entry.session, entry.page, f"is pinned and was freed ({entry.reason})")
        account.evicted.add(entry.page)
        account.n_evicted += 1
        account.by_region[entry.region] += 1
        account.tokens_by_region.update(entry.regions)
        account.by_reason[entry.reason.value] += 1
        self._entries.append(entry)

    def rewound(self, session: str, first_page: int) -> None:
        """The session gave back every page from ``first_page`` on; they may be allocated anew."""
        account = self._accounts.setdefault(session, _Account())
        gone = {page for page in account.held if page >= first_page}
        account.held -= gone
        account.evicted = {page for page in account.evicted if page < first_page}
        account.n_released += len(gone)

    def closed(self, session: str) -> None:
        """The session gave back everything: it ended, was aborted, or was preempted. It may begin again."""
        self.rewound(session, 0)
        surplus = len(self._accounts) - self._max_sessions
        if surplus > 0:
            idle = [key for key, account in self._accounts.items() if not account.held]
            for key in idle[: surplus + self._max_sessions // 10]:
                self._retired.add(self._accounts.pop(key))

    def copy(self) -> Ledger:
        """The ledger as it is now; entries are immutable and shared."""
        twin = Ledger(self._entries.maxlen or 0, self._max_sessions)
        twin._retired = copy.deepcopy(self._retired)
        twin._accounts = copy.deepcopy(self._accounts)
        twin._entries = self._entries.copy()
        twin._faults = list(self._faults)
        return twin

    # --- reading --------------------------------------------------------------------------------

    def entries(self, session: str | None = None, *, request_id: str | None = None) -> list[LedgerEntry]:
        """Evictions, oldest first, of one session or request or of all."""
        return [
            entry
            for entry in self._entries
            if session in (None, entry.session) and request_id in (None, entry.request_id)
        ]

    def sessions(self) -> tuple[str, ...]:
        """Keys of the sessions that have an account."""
        return tuple(self._accounts)

    def held_pages(self, session: str) -> frozenset[int]:
        """Logical pages that the session holds by this ledger."""
        return frozenset(self._accounts.get(session, _Account()).held)

    def summary(self, session: str | None = None) -> LedgerSummary:
        """Totals of one session (zeros if unknown), or of all together."""
        known = self._accounts
        accounts = [*known.values(), self._retired] if session is None else [known.get(session, _Account())]
        return LedgerSummary(
            allocated=sum(account.n_allocated for account in accounts),
            held=sum(len(account.held) for account in accounts),
            evicted=sum(account.n_evicted for account in accounts),
            released=sum(account.n_released for account in accounts),
            freed_pinned=sum(account.freed_pinned for account in accounts),
            evicted_by_region=_total(account.by_region for account in accounts),
            evicted_tokens_by_region=_total(account.tokens_by_region for account in accounts),
            evicted_by_reason=_total(account.by_reason for account in accounts),
        )

    def check_integrity(self, held_by_session: Mapping[str, Collection[int]] | None = None) -> None:
        """Check that every page's life adds up.

        Args:
            held_by_session: the pages that the engine's block tables hold in truth, all sessions; None: only
                the ledger against itself.

        Raises:
            LedgerError: a double free, a freed pinned page, a page freed and never allocated, an allocation
                of a held page, pages that are neither held nor accounted for, or entries that are missing.
        """
        faults = list(self._faults)
        for session, account in (*self._accounts.items(), ("all the older ones", self._retired)):
            balance = len(account.held) + account.n_evicted + account.n_released
            if account.n_allocated != balance:
                faults.append(
                    f"session '{session}': {account.n_allocated} pages allocated, but {len(account.held)} held + "
                    f"{account.n_evicted} evicted + {account.n_released} released = {balance}"
                )
        n_evicted = self.summary().evicted
        n_expected = n_evicted if self._entries.maxlen is None else min(n_evicted, self._entries.maxlen)
        if len(self._entries) != n_expected:
            faults.append(f"{len(self._entries)} entries for {n_evicted} evictions: entries are missing")
        if held_by_session is not None:
            for session in sorted({*self._accounts, *held_by_session}):
                faults.extend(self._compare(session, set(held_by_session.get(session, ()))))
        if faults:
            raise LedgerError(
                where=f"ledger of {len(self._accounts)} sessions",
                rule="; ".join(faults[:8]) + (f"; and {len(faults) - 8} more" if len(faults) > 8 else ""),
                remedy="This is a bug in the engine adapter or in a policy: report it with the ledger file.",
            )

    def to_jsonl(self, path: str | Path) -> None:
        """Write all entries, one JSON object a line."""
        write_jsonl(self._entries, path)

    @staticmethod
    def from_jsonl(path: str | Path) -> list[LedgerEntry]:
        """Read entries that ``to_jsonl`` wrote.

        Raises:
            LedgerError: a line is no entry.
        """
        return read_jsonl(path)

    def _compare(self, session: str, truly_held: set[int]) -> Iterable[str]:
        held = self.held_pages(session)
        if lost := sorted(held - truly_held):
            yield f"session '{session}': pages {lost[:8]} are held by the ledger and not by the engine"
        if unknown := sorted(truly_held - held):
            yield f"session '{session}': pages {unknown[:8]} are held by the engine and not by the ledger"

    def _fault(self, session: str, page: int, what: str) -> None:
        if len(self._faults) < 1000:
            self._faults.append(f"session '{session}': page {page} {what}")


def _total(counters: Iterable[Counter[str]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return dict(total)
