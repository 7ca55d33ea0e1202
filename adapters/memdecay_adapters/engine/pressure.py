"""Room for a running request, taken where it hurts least.

    1  idle sessions are shrunk to their guarantees, the lowest page scores of all of them first
    2  idle sessions are parked: given up and prefilled again at their next turn, the longest idle first
    3  running requests above what they are entitled to are brought down, the one furthest above first
    4  shares of the pool are brought down to their guarantees

Then vLLM preempts. Pinned and protected pages of a running request are never taken, and a session without a budget
is never shrunk: its owner asked for everything.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from memdecay_adapters.engine.block_rows import Block, held_pages, private_pages
from memdecay_adapters.engine.controller import EvictionController
from memdecay_adapters.engine.events import PARKED_SESSIONS, SHRUNK_PAGES
from memdecay_adapters.engine.session_store import RetainedSession
from memdecay_adapters.engine.tracked_request import TrackedRequest
from memdecay_agents.ledger import EvictionReason
from memdecay_agents.selection import EvictionPlan


class PageCache(Protocol):
    """The part of the cache manager that is needed here."""

    def free_page_count(self) -> int:
        """Free or reclaimable pages."""

    def row(self, request_id: str) -> list[Block]:
        """A running request's row."""

    def published_pages(self, request_id: str) -> int:
        """Leading pages of its row that the prefix cache knows."""

    def drop_pages(self, row: list[Block], pages: Sequence[int]) -> None:
        """Null entries of a row and free their blocks."""


class PoolPressure:
    """Makes room in one pool. Owned by the scheduler's thread.

    Args:
        controller: plans and books.
        cache: frees.
    """

    def __init__(self, controller: EvictionController, cache: PageCache) -> None:
        self._controller = controller
        self._cache = cache

    def make_room(self, request_id: str, needed_pages: int) -> bool:
        """Free pages until ``needed_pages`` are free, or nothing more may be taken.

        Args:
            request_id: who needs them; the idle session that it is about to continue is spared.
            needed_pages: how many it needs.

        Returns:
            Whether anything was taken: what is needed may have changed with it.
        """

        def short() -> int:
            return needed_pages - self._cache.free_page_count()

        took = False
        if short() > self._most_to_be_had(request_id):
            return False  # giving up sessions for nothing helps nobody
        steps: tuple[Callable[[int], bool], ...] = (
            lambda pages: self._shrink_idle(pages, self._controller.session_of(request_id)),
            lambda pages: self._park(self._controller.session_of(request_id)),
            lambda pages: self._shrink_running(pages, self._controller.entitled_pages),
            lambda pages: self._shrink_running(pages, self._controller.guaranteed_pages),
        )
        for step in steps:
            while (pages := short()) > 0 and step(pages):
                took = True
        return took

    def _most_to_be_had(self, request_id: str) -> int:
        """No more pages than this can be taken: all of the idle sessions, and what running requests may lose."""
        spared = self._controller.session_of(request_id)
        idle = sum(len(session.held_pages) for session in self._controller.sessions if session is not spared)
        running = 0
        for name, _, _ in self._controller.running():
            floor = self._controller.guaranteed_pages(name)
            if floor is not None:
                running += max(len(held_pages(self._cache.row(name))) - floor, 0)
        return idle + running

    def _shrink_idle(self, pages: int, spared: RetainedSession | None) -> bool:
        """Take at least ``pages`` from idle sessions above their guarantees; False: there was nothing to take.

        A whole chunk is taken at once: planning looks at every page, and the next request for room is near.
        """
        candidates: list[tuple[RetainedSession, EvictionPlan]] = []
        wanted = max(pages, self._controller.chunk_pages)
        for session in self._controller.sessions:
            guaranteed = session.state.guaranteed_pages
            held = session.held_pages
            if session is spared or guaranteed is None or len(held) <= guaranteed:
                continue
            surplus = len(held) - guaranteed
            plan = session.state.plan(
                len(session.token_ids), held, pages_to_free=surplus, leaving_pages=min(surplus, wanted)
            )
            candidates.append((session, dataclasses.replace(plan, pages=private_pages(session.blocks, plan.pages))))
        taken = lowest_first([[plan.scores[page] for page in plan.pages] for _, plan in candidates], wanted)
        for (session, plan), count in zip(candidates, taken, strict=True):
            if count:
                head = dataclasses.replace(plan, pages=plan.pages[:count])
                freed = self._controller.book_idle(session, head, EvictionReason.pool_pressure)
                self._cache.drop_pages(session.blocks, freed)
                self._note_shrunk(session.state.agent, "idle", session.state.key, count)
        return any(taken)

    def _park(self, spared: RetainedSession | None) -> bool:
        oldest = self._controller.sessions.oldest(spared)
        if oldest is None:
            return False
        self._controller.give_up([oldest], PARKED_SESSIONS)
        return True

    def _shrink_running(self, pages: int, floor_of: Callable[[str], int | None]) -> bool:
        """Take ``pages`` from running requests above a floor; False: there was nothing to take."""
        rows = {
            request_id: self._cache.row(request_id)
            for request_id, tracked, _ in self._controller.running()
            if not self._publishes_in_this_step(request_id, tracked)
        }
        floors = {request_id: floor_of(request_id) for request_id in rows}
        taken = 0
        while taken < pages:
            surplus = {
                request_id: len(held_pages(rows[request_id])) - floor
                for request_id, floor in floors.items()
                if floor is not None
            }
            wanted = furthest_first(surplus, pages - taken)
            if not wanted:
                break
            for request_id, count in wanted.items():
                freed = self._shrink_one(request_id, rows[request_id], count)
                taken += freed
                if freed < count:
                    floors[request_id] = None  # what it has left is pinned or protected
        return taken > 0

    def _publishes_in_this_step(self, request_id: str, tracked: TrackedRequest) -> bool:
        """Whether it was scheduled already, with a page that this step completes.

        vLLM publishes such a page before it is computed; it would be computed without what is taken now.
        """
        complete = tracked.request.num_computed_tokens // self._controller.page_size_tokens
        return self._cache.published_pages(request_id) > complete

    def _shrink_one(self, request_id: str, row: list[Block], count: int) -> int:
        tracked, state = next((t, s) for name, t, s in self._controller.running() if name == request_id)
        processed = tracked.request.num_computed_tokens
        held = held_pages(row)
        plan = state.plan(processed, held, pages_to_free=len(held), leaving_pages=count)
        plan = dataclasses.replace(plan, pages=private_pages(row, plan.pages)[:count])
        freed = self._controller.book(request_id, plan, processed, EvictionReason.pool_pressure)
        self._cache.drop_pages(row, freed)
        if freed:
            self._note_shrunk(state.agent, "running", state.key, len(freed))
        return len(freed)

    def _note_shrunk(self, agent: str, kind: str, session: str, pages: int) -> None:
        self._controller.events.note(SHRUNK_PAGES, agent, kind, by=pages, session=session)


def lowest_first(scores: Sequence[Sequence[float]], wanted: int) -> list[int]:
    """How many of each list's head to take, so that ``wanted`` are taken, always the lowest of all heads.

    Args:
        scores: page scores of each session, in the order in which its pages would go.
        wanted: how many to take; all where there are fewer.
    """
    heap = [(list_of[0], at) for at, list_of in enumerate(scores) if list_of]
    heapq.heapify(heap)
    taken = [0] * len(scores)
    while heap and wanted > 0:
        _, at = heapq.heappop(heap)
        taken[at] += 1
        wanted -= 1
        if taken[at] < len(scores[at]):
            heapq.heappush(heap, (scores[at][taken[at]], at))
    return taken


def furthest_first(surplus: dict[str, int], wanted: int) -> Counter[str]:
    """How many pages to take from each so that the largest surplus comes down first.

    Args:
        surplus: pages above what each may keep.
        wanted: how many to take; all of the surplus where it is less.
    """
    heap = [(-pages, at, name) for at, (name, pages) in enumerate(surplus.items()) if pages > 0]
    heapq.heapify(heap)
    taken: Counter[str] = Counter()
    while heap and wanted > 0:
        above, at, name = heapq.heappop(heap)
        taken[name] += 1
        wanted -= 1
        if above + 1 < 0:
            heapq.heappush(heap, (above + 1, at, name))
    return taken
