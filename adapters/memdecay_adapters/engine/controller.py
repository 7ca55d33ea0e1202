"""The scheduler's side of eviction: what a request may hold, what to free, what was freed.

The cache manager asks, the controller answers from the request's `SessionState`; nothing here touches a block or a
tensor, and nothing here may raise on a user's input, for an exception in the scheduler ends the engine.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from memdecay_adapters.engine.block_rows import Block
from memdecay_adapters.engine.events import (
    BYPASSES,
    EVICTED_PAGES,
    PLANNING_SECONDS,
    SHORTFALLS,
    UNBOUND_BUDGETS,
)
from memdecay_adapters.engine.pool_shares import PoolShares
from memdecay_adapters.engine.session_store import RetainedSession
from memdecay_adapters.engine.settings import EngineSettings
from memdecay_adapters.engine.step_evidence import StepEvidence
from memdecay_adapters.engine.tracked_request import TrackedRequest
from memdecay_agents.errors import IntegrityError
from memdecay_agents.ledger import EvictionReason, Ledger, LedgerEntry
from memdecay_agents.selection import EvictionPlan
from memdecay_agents.session_state import SessionState


class EvictionController(StepEvidence):
    """Plans and books the evictions of one engine's sessions. Owned by the scheduler's thread.

    Args:
        settings: regions, policy, budgets, measurement; whether and how long sessions are kept.
        page_size_tokens: the block size of the engine's cache.
        chunk_tokens: most tokens of one engine step.
        pool_pages: usable pages of the pool.
    """

    def __init__(self, settings: EngineSettings, page_size_tokens: int, chunk_tokens: int, pool_pages: int) -> None:
        super().__init__(settings, page_size_tokens, chunk_tokens, pool_pages)
        self.shares = PoolShares(self.admission)
        self.row_of: Callable[[str], Sequence[Block]] = lambda request_id: ()
        """A running request's row; bound to the cache manager."""
        self._unbound_noted = False

    # ---- asked by the cache manager

    def pages_to_evict(
        self, request_id: str, held_pages: Sequence[int], table_pages: int, processed_tokens: int
    ) -> tuple[int, ...]:
        """Plan and book what the request must give up before its next pages are allocated.

        While prefilling it is brought down to its budget before each chunk; when only one token is left to
        compute, also the page of that token must fit. When it has ended and its session lives on, it leaves
        with no more than its budget.

        Args:
            request_id: the request about to be scheduled, or ended.
            held_pages: logical pages that its row holds, ascending.
            table_pages: length of its row, holes included.
            processed_tokens: tokens whose keys and values are complete.

        Returns:
            Logical pages, each booked in the ledger; the caller frees them.
        """
        tracked = self._requests.get(request_id)
        if tracked is None or tracked.budget is None:
            return ()
        needed_pages = 0
        if tracked.request.is_finished():
            if not tracked.retains:
                return ()
            self._state_of(tracked).kept_pages = frozenset()
        elif tracked.repairs:
            return ()  # everything is there until it has ended
        elif processed_tokens < tracked.recall.rerun_until and not tracked.is_decoding(processed_tokens):
            return ()  # the turn is computed again with what it holds
        elif tracked.is_decoding(processed_tokens):
            needed_pages = max(processed_tokens // self.page_size_tokens + 1 - table_pages, 0)
        state = self._state_of(tracked)
        state.reserve_pages = self._reserve_of(tracked, processed_tokens)
        self.refresh_share(tracked, state)
        started = time.perf_counter_ns()
        plan = state.plan(processed_tokens, held_pages, needed_pages)
        if plan.shortfall_pages and state.kept_pages:
            state.kept_pages = frozenset()  # a budget goes before what was recalled, and before recalling
            tracked.recall.decided = True
            plan = state.plan(processed_tokens, held_pages, needed_pages)
        if plan.shortfall_pages > tracked.shortfall_pages:
            tracked.shortfall_pages = plan.shortfall_pages
            self.events.note(SHORTFALLS, state.agent, level=logging.WARNING, request=request_id,
                             shortfall_pages=plan.shortfall_pages, detail=plan.refusal)  # fmt: skip
        reason = EvictionReason.swapped_out if tracked.repairs else EvictionReason.over_budget
        freed = self.book(request_id, plan, processed_tokens, reason)
        if freed:
            self.events.count(PLANNING_SECONDS, by=time.perf_counter_ns() - started)
        return freed

    def _reserve_of(self, tracked: TrackedRequest, processed_tokens: int) -> int:
        """Pages kept free for recall: between two turns, and in one until its evidence was weighed."""
        recall = None if self.tier is None else self.tier.tier.recall
        in_use = tracked.recall.decided or tracked.is_decoding(processed_tokens)
        return 0 if recall is None or (in_use and not tracked.request.is_finished()) else recall.reserve_pages

    # ---- carried out for a budget, or for pool pressure

    def book(
        self, request_id: str, plan: EvictionPlan, processed_tokens: int, reason: EvictionReason
    ) -> tuple[int, ...]:
        """Book a running request's plan.

        Args:
            request_id: whose row it is.
            plan: the newest plan of its state.
            processed_tokens: tokens whose keys and values are complete.
            reason: why the pages go.

        Returns:
            The plan's pages; the caller frees them.
        """
        tracked = self._requests[request_id]
        tracked.settled_pages = 0
        if plan.pages and not tracked.request.is_finished():
            tracked.recall.whole = False
        for entry in self._book(self._state_of(tracked), plan, request_id, reason, self.row_of(request_id)):
            tracked.freed_by_region[entry.region] += 1
        if plan.pages:
            if tracked.clean_pages is None:
                tracked.clean_pages = processed_tokens // self.page_size_tokens
            self._evicted_since_step.setdefault(request_id, []).extend(plan.pages)
            if restored := self._restored_since_step.get(request_id):
                for page in plan.pages:
                    restored.pop(page, None)
        return plan.pages

    def book_idle(self, session: RetainedSession, plan: EvictionPlan, reason: EvictionReason) -> tuple[int, ...]:
        """Book an idle session's plan; see `book`."""
        self._book(session.state, plan, "", reason, session.blocks)
        if plan.pages and session.clean_pages is None:
            session.clean_pages = len(session.token_ids) // self.page_size_tokens
        return plan.pages

    def _book(
        self,
        state: SessionState,
        plan: EvictionPlan,
        request_id: str,
        reason: EvictionReason,
        row: Sequence[Block],
    ) -> list[LedgerEntry]:
        if plan.fault is not None:
            self.events.note(BYPASSES, "policy_fault", level=logging.ERROR, request=request_id, detail=plan.fault)
        self._refuse_pinned(state, plan.pages)
        entries = state.apply(plan, request_id=request_id, reason=reason)
        self.live.evicted(state.session_id.tenant, state.agent, entries)
        if self.tier is not None:
            self.tier.page_out(state, row, entries, self._being_computed(request_id))
        by_region = Counter((entry.region, entry.reason) for entry in entries)
        for (region, why), pages in by_region.items():
            self.events.note(EVICTED_PAGES, state.agent, region, why.value, by=pages, level=logging.DEBUG,
                             request=request_id, session=state.key)  # fmt: skip
        return entries

    def _being_computed(self, request_id: str) -> set[int]:
        """Blocks that other requests write in the step that is being planned, or later.

        vLLM publishes a page when it is scheduled, so that a request of the same step may begin on it, and lose it
        again, before its bytes are there.
        """
        blocks: set[int] = set()
        others = {name: tracked.request for name, tracked in self._requests.items()}
        others |= {name: request for name, (request, _) in self._plain.items()}
        others.pop(request_id, None)
        for name, request in others.items():
            unwritten = self.row_of(name)[request.num_computed_tokens // self.page_size_tokens :]
            blocks.update(block.block_id for block in unwritten if not block.is_null)
        return blocks

    def note_restored(self, request_id: str, brought: Mapping[int, Block]) -> None:
        """Pages came back into a running request's row: the worker learns of it with the next step."""
        self._requests[request_id].settled_pages = 0
        evicted = self._evicted_since_step.get(request_id, [])
        self._evicted_since_step[request_id] = [page for page in evicted if page not in brought]
        restored = self._restored_since_step.setdefault(request_id, {})
        restored.update({page: block.block_id for page, block in brought.items()})

    def take_restored(self) -> dict[str, dict[int, int]]:
        """Pages that came back since the last step and are still there, with their blocks, by request id."""
        restored, self._restored_since_step = self._restored_since_step, {}
        return restored

    def refresh_share(self, tracked: TrackedRequest, state: SessionState) -> None:
        """Tell a session whose budget is a share of the pool what that is now."""
        if tracked.budget is not None and tracked.budget.kind == "share":
            state.share_pages = self.shares.of(tracked.request.request_id, self._requests, self.page_size_tokens)

    def with_state(self, request_id: str) -> tuple[TrackedRequest, SessionState] | None:
        """A request that has begun, and its session's state."""
        tracked = self._requests.get(request_id)
        return None if tracked is None or tracked.state is None else (tracked, tracked.state)

    def running(self) -> Iterator[tuple[str, TrackedRequest, SessionState]]:
        """Requests whose rows the worker knows: their id, what is remembered of them, their state."""
        for request_id, tracked in self._requests.items():
            if tracked.in_worker and tracked.state is not None and not tracked.request.is_finished():
                yield request_id, tracked, tracked.state

    def entitled_pages(self, request_id: str) -> int | None:
        """What a running request may keep while others need pages: its share, or its guarantee; None: all of it."""
        tracked = self._requests[request_id]
        if tracked.budget is None:
            return None
        if tracked.budget.kind == "share":
            return self.shares.of(request_id, self._requests, self.page_size_tokens)
        return self.guaranteed_pages(request_id)

    def guaranteed_pages(self, request_id: str) -> int | None:
        """What a running request keeps whatever others need; None: all of it."""
        tracked = self._requests[request_id]
        return None if tracked.budget is None else tracked.reserved_pages(self.page_size_tokens)

    def is_settled(self, request_id: str, table_pages: int, processed_tokens: int) -> bool:
        """Whether a decode step needs no page and finds a row that is known to be within its budget: there is nothing
        to plan and nothing to book.

        Args:
            request_id: the request about to be scheduled.
            table_pages: length of its row, holes included.
            processed_tokens: tokens whose keys and values are complete.
        """
        tracked = self._requests.get(request_id)
        return (
            tracked is not None
            and tracked.settled_pages == table_pages > processed_tokens // self.page_size_tokens
            and not tracked.request.is_finished()
        )

    def allocated(self, request_id: str, held_pages: Sequence[int], table_pages: int) -> None:
        """Book what the request's row, of so many pages with holes, holds after an allocation."""
        tracked = self._requests.get(request_id)
        if tracked is not None:
            state = self._state_of(tracked)
            state.note_held(held_pages)
            tracked.note_peak(len(held_pages))
            tracked.settle(len(held_pages), table_pages, state.budget_pages)

    def first_pages(self, request_id: str) -> int | None:
        """Pages that the request must find free to begin: one chunk. Its guarantee is reserved already.

        None: it has no budget, and vLLM asks for its whole prompt.
        """
        tracked = self._requests.get(request_id)
        return None if tracked is None or tracked.budget is None else self.chunk_pages + 1

    def clean_tokens(self, request_id: str) -> int | None:
        """Tokens up to which the request saw its whole context; None: it still does."""
        tracked = self._requests.get(request_id)
        if tracked is None or tracked.clean_pages is None:
            return None
        return tracked.clean_pages * self.page_size_tokens

    # ---- looking inside

    def ledger_copy(self) -> Ledger:
        """The ledger as it is now."""
        return self.ledger.copy()

    def note_unbound_budgets(self) -> None:
        """Warn, once, of agents whose budget never asked for an eviction: a budget that changed nothing."""
        tallies, self._unbound_noted = [] if self._unbound_noted else list(self.agents), True
        for tally in tallies:
            if tally.never_bound and self.policy.evicts:
                self.events.note(UNBOUND_BUDGETS, tally.agent, level=logging.WARNING, budget_pages=tally.budget_pages,
                                 longest_turn_pages=tally.longest_pages, turns=tally.turns)  # fmt: skip

    def check_integrity(self, held_by_request: Mapping[str, Sequence[int]]) -> None:
        """Check the ledger against the rows that the cache manager and the idle sessions really hold.

        Raises:
            LedgerError: they differ, a page was freed twice, or a pinned page was freed.
        """
        held = {session.state.key: session.held_pages for session in self.sessions}
        for request_id, tracked in self._requests.items():
            if tracked.state is not None:
                held[tracked.state.key] = list(held_by_request.get(request_id, ()))
        self.ledger.check_integrity(held)

    def _refuse_pinned(self, state: SessionState, pages: Sequence[int]) -> None:
        if not self.config.policy_pins:
            return
        page = self.page_size_tokens
        for number in pages:
            if state.tokens.pinned[number * page : (number + 1) * page].any():
                raise IntegrityError(
                    where=f"session {state.key!r}, page {number}",
                    rule=f"policy {self.policy.name!r} chose a pinned page",
                    remedy="Check the policy with memdecay_agents.testing.check_policy.",
                )
