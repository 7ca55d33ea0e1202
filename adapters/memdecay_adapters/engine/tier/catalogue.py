"""Which page of which session lies in which slot of the tier, within the byte budgets.

put -> away (on the device no more) <-> resident (back on the device; the copy stays, a full page never changes)
dropped, least valuable first: copies of resident pages, then pages by their score at eviction, the oldest first
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from memdecay_agents.ledger import LedgerEntry

AgentKey = tuple[str, str]
"""Tenant and agent."""
Rank = tuple[bool, bool, float, int]


@dataclass(eq=False)
class HostPage:
    """One page in the tier."""

    session: str
    """Key of the session that alone may read it."""
    agent: AgentKey
    page: int
    """Logical page number in the session."""
    slot: int
    entry: LedgerEntry
    """Of its newest eviction."""
    number: int
    """The order of arrival."""
    resident: bool = False
    """Whether the page is on the device, too."""
    held: bool = False
    """Whether it must stay: it is about to come back."""
    pending: bool = False
    """Whether its bytes are not there yet: the step that computes them has not run."""
    version: int = 0
    """Grows when its rank changes."""

    @property
    def rank(self) -> Rank:
        """The lowest goes first."""
        return self.held, not self.resident, self.entry.score, self.number


class Placed(NamedTuple):
    """What became of a page that was to be put into the tier."""

    slot: int | None
    """Where its bytes are to be written; None: they lie there already, or there is no room for it."""
    dropped: int
    """Pages that the tier lost for it, itself included."""


class _Queue:
    """Pages by rank, the lowest first; entries that are out of date are skipped."""

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, int, HostPage]] = []
        self.live = 0

    def push(self, page: HostPage) -> None:
        heapq.heappush(self._heap, (page.rank, page.version, page))
        if len(self._heap) > 4 * self.live + 64:
            self._heap = [item for item in self._heap if item[1] == item[2].version]
            heapq.heapify(self._heap)

    def lowest(self) -> HostPage | None:
        while self._heap and self._heap[0][1] != self._heap[0][2].version:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None


class HostCatalogue:
    """The tier's pages. Owned by the scheduler's thread; nothing here raises on a full tier.

    Args:
        max_pages: slots.
        max_pages_per_agent: of one agent of one tenant; None: no such limit.
    """

    def __init__(self, max_pages: int, max_pages_per_agent: int | None = None) -> None:
        self.max_pages = max_pages
        self.max_pages_per_agent = max_pages if max_pages_per_agent is None else max_pages_per_agent
        self._sessions: dict[str, dict[int, HostPage]] = {}
        self._free: list[int] = []
        self._slots_used = 0
        self._numbers = 0
        self._all = _Queue()
        self._by_agent: defaultdict[AgentKey, _Queue] = defaultdict(_Queue)

    def __len__(self) -> int:
        return self._all.live

    def __iter__(self) -> Iterator[HostPage]:
        for pages in self._sessions.values():
            yield from pages.values()

    def of(self, session: str) -> dict[int, HostPage]:
        """A session's pages by logical number; not a copy."""
        return self._sessions.get(session, {})

    def away(self, session: str) -> list[HostPage]:
        """A session's pages that are in the tier alone and may be read, ascending."""
        return [page for _, page in sorted(self.of(session).items()) if not (page.resident or page.pending)]

    def agents(self) -> Counter[AgentKey]:
        """Pages in the tier by agent."""
        return Counter({agent: queue.live for agent, queue in self._by_agent.items() if queue.live})

    def put(self, session: str, agent: AgentKey, entry: LedgerEntry) -> Placed:
        """A page leaves the device: find it a slot, unless its bytes lie in the tier already."""
        known = self.of(session).get(entry.page)
        if known is not None:
            known.entry, known.resident = entry, False
            self._touch(known)
            return Placed(None, 0)
        self._numbers += 1
        page = HostPage(session, agent, entry.page, -1, entry, self._numbers)
        dropped = 0
        for queue, limit in ((self._by_agent[agent], self.max_pages_per_agent), (self._all, self.max_pages)):
            while queue.live >= limit:
                lowest = queue.lowest()
                if lowest is None or lowest.held or lowest.rank > page.rank:
                    return Placed(None, dropped + 1)
                dropped += not lowest.resident
                self._remove(lowest)
        page.slot = self._take_slot()
        self._sessions.setdefault(session, {})[entry.page] = page
        for queue in (self._all, self._by_agent[agent]):
            queue.live += 1
            queue.push(page)
        return Placed(page.slot, dropped)

    def hold(self, pages: Iterable[HostPage], held: bool = True) -> None:
        """Keep pages from being dropped while others are put in; ``held=False`` lets go."""
        for page in pages:
            page.held = held
            self._touch(page)

    def restored(self, page: HostPage) -> None:
        """A page is on the device again; its copy stays."""
        page.resident, page.held = True, False
        self._touch(page)

    def drop(self, session: str, first_page: int = 0) -> int:
        """A session's pages from ``first_page`` on are of no more use; returns how many there were."""
        gone = [page for number, page in self.of(session).items() if number >= first_page]
        for page in gone:
            self._remove(page)
        return len(gone)

    def _touch(self, page: HostPage) -> None:
        page.version += 1
        self._all.push(page)
        self._by_agent[page.agent].push(page)

    def _remove(self, page: HostPage) -> None:
        page.version += 1
        pages = self._sessions[page.session]
        del pages[page.page]
        if not pages:
            del self._sessions[page.session]
        heapq.heappush(self._free, page.slot)
        self._all.live -= 1
        self._by_agent[page.agent].live -= 1
        if not self._by_agent[page.agent].live:
            del self._by_agent[page.agent]

    def _take_slot(self) -> int:
        """The lowest free slot: those of memory come before those of the disk."""
        if self._free:
            return heapq.heappop(self._free)
        self._slots_used += 1
        return self._slots_used - 1
