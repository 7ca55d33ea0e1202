"""Pages change places between the device and the tier: at a turn's start by wish, after its prompt by evidence.

    start of a turn   pages wished for come back, the lowest in the policy's order make room      nothing is computed
    between turns     everything comes back, beyond the budget, until the newest tokens are computed again (a repair)
    end of its prompt evidence of the newest queries -> plan_swap -> the same number out and in   the turn runs again
    in its answer     the same every so many tokens, if that is wanted                            so many run again

But for a repair a swap adds no page to what the request holds beyond its budget; a reserve takes pages for which none
has to leave. Recent pages before what is computed again leave last. What came back stays for this turn, unless the
budget cannot be met otherwise, or until its answer is asked again.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memdecay_adapters.engine.block_rows import Block, held_pages
from memdecay_adapters.engine.controller import EvictionController
from memdecay_adapters.engine.events import HOST_COPIED_BYTES, HOST_SECONDS, RECALLED_PAGES, RECALLS
from memdecay_adapters.engine.tier.book import TierBook
from memdecay_adapters.engine.tier.messages import QueryWindow, TierDirections
from memdecay_adapters.engine.tier.moves import PageMoves, SwapCache
from memdecay_adapters.engine.tier.probing import OpenProbe, Probing
from memdecay_adapters.engine.tier.report import TierReport
from memdecay_adapters.engine.tracked_request import TrackedRequest
from memdecay_agents.recall import EvidenceArray, plan_swap, with_neighbours
from memdecay_agents.recall.wishes import RecallWish, wished_pages
from memdecay_agents.session_state import SessionState


class Swaps:
    """Moves pages of one engine's requests. Owned by the scheduler's thread; nothing here raises on a user's input.

    Args:
        controller: plans and books.
        cache: gives blocks and takes them.
        book: of the tier.
        chunk_tokens: most tokens of one engine step.
    """

    def __init__(self, controller: EvictionController, cache: SwapCache, book: TierBook, chunk_tokens: int) -> None:
        self._controller = controller
        self._cache = cache
        self._book = book
        self._moves = PageMoves(controller, cache, book)
        recall = book.tier.recall
        self.probing = None if recall is None else Probing(controller, cache, book.catalogue.away, recall, chunk_tokens)
        self._open: dict[str, OpenProbe] = {}
        self._rewound: list[str] = []

    # ---- a turn begins

    def begin_turn(self, request_id: str) -> None:
        """The request has its first pages: bring back what was wished for, and keep what may be computed again."""
        found = self._controller.with_state(request_id)
        if found is None or found[0].recall.begun or found[0].budget is None:
            return
        tracked, state = found
        tracked.recall.begun = True
        if tracked.repairs:
            self._bring_all(tracked, state)
            return
        if self.probing is not None and self.probing.may_ask(tracked):
            page, request = state.config.page_size_tokens, tracked.request
            first = self.probing.rerun_from(tracked) // page
            tracked.recall.question_pages = frozenset(range(first, request.num_prompt_tokens // page + 1))
            state.kept_pages |= tracked.recall.question_pages
        wish = self._book.take_wish(state) + (tracked.hints.recall or RecallWish())
        if wish:
            self._grant(tracked, state, wish)

    def _bring_all(self, tracked: TrackedRequest, state: SessionState) -> None:
        """For a repair everything comes back that the tier has, beyond the budget, if the pool has room for it.

        Others may take those pages again while it runs: they are not kept.
        """
        request = tracked.request
        row, page = self._cache.row(request.request_id), state.config.page_size_tokens
        away = [one for one in self._book.catalogue.away(state.key) if one.page < len(row)]
        to_compute = request.num_prompt_tokens // page + 1 - len(row)
        if len(away) + to_compute > self._cache.free_page_count():
            tracked.repairs = False  # others came first: it ends as a turn that repeats its prompt's end
            self._note(tracked, state, "repair", {}, "no_room")
            return
        kept, clean, first = state.kept_pages, tracked.clean_pages, tracked.continued_tokens
        brought = self._moves.swap(tracked, state, row, away, 0, first, cause="repair")
        state.kept_pages, tracked.recall.mends = kept, True
        tracked.recall.whole = not tracked.recall.skips and not any(block.is_null for block in row)
        if clean is not None and first <= clean * page and tracked.recall.whole:
            tracked.clean_pages = None  # all of it will have seen its whole context
        self._note(tracked, state, "repair", brought, "swapped" if brought else "nothing")

    def _grant(self, tracked: TrackedRequest, state: SessionState, wish: RecallWish) -> None:
        row, processed = self._cache.row(tracked.request.request_id), tracked.continued_tokens
        wished = wished_pages(wish, state.tokens)
        held = held_pages(row)
        state.kept_pages |= wished
        evictable = int(state.view(processed, held).evictable.sum())
        self._controller.refresh_share(tracked, state)
        room = max((state.budget_pages or 0) - len(held), 0)
        by_value = sorted(self._book.catalogue.away(state.key), key=lambda page: -page.entry.score)
        asked = [page for page in by_value if page.page in wished and page.page < len(row)]
        coming = asked[: room + max(evictable - 1, 0)]
        brought = self._moves.swap(tracked, state, row, coming, max(len(coming) - room, 0), processed)
        self._note(tracked, state, "wish", brought, "swapped" if brought else "nothing")

    # ---- each step

    def directions(self, scheduled_tokens: Mapping[str, int]) -> TierDirections:
        """Close the planning of a step; see `TierDirections`.

        Args:
            scheduled_tokens: request id to the tokens that this step computes.
        """
        directions = TierDirections(copies=self._book.take_copies(), rewound=self._rewound)
        self._rewound, self._open = [], {}
        for copy in directions.copies:
            self._controller.events.count(HOST_COPIED_BYTES, copy.direction, by=self._book.page_bytes)
        if self.probing is None:
            return directions
        for request_id, tokens in scheduled_tokens.items():
            found = self._controller.with_state(request_id)
            if found is None or not self.probing.may_ask(found[0]):
                continue
            tracked, state = found
            before, due = tracked.request.num_computed_tokens, self.probing.due(tracked)
            first = max(before, due - self.probing.recall.query_tokens)
            if before + tokens > first:
                directions.windows[request_id] = QueryWindow(first, before + tokens - first)
            if before + tokens >= due:
                opened = self.probing.open(request_id, tracked, state)
                if opened is None:
                    self._decided(tracked, state, self.probing)
                else:
                    self._open[request_id] = opened
                    directions.probes[request_id] = self.probing.message(request_id, opened)
        return directions

    def decide(self, request_id: str, evidence: EvidenceArray | None) -> int | None:
        """Swap by what the worker found, if it says so.

        Args:
            request_id: whose probe it was; it has not been preempted since.
            evidence: float64: of the probe's slots, then of its blocks; None or not finite: the worker has none.

        Returns:
            The token from which the turn is to be computed again; None: it goes on.
        """
        probe, found = self._open.pop(request_id, None), self._controller.with_state(request_id)
        if probe is None or found is None or self.probing is None:
            return None
        (tracked, state), recall = found, self.probing.recall
        self._decided(tracked, state, self.probing)
        host = len(probe.away)
        movable = host + len(probe.retained)
        if evidence is None or evidence.shape != (movable + len(probe.pinned),) or not np.isfinite(evidence).all():
            self._note(tracked, state, "evidence", {}, "lost")
            return None
        pages = np.array([one.page for one in probe.away] + probe.retained, dtype=np.int64)
        least = recall.least_share * float(evidence.max())
        evidence = with_neighbours(evidence[:movable], pages, recall.neighbour_share)
        plan = plan_swap(
            evidence[:host], evidence[host:], recall.max_pages,
            least_evidence=least, free_pages=probe.room, last=probe.recent,
        )  # fmt: skip
        victims = [probe.retained[index] for index in plan.send_out.tolist()]
        coming = [probe.away[index] for index in plan.bring_in.tolist()]
        found_by = {probe.away[index].page: float(evidence[index]) for index in plan.bring_in.tolist()}
        row = self._cache.row(request_id)
        brought = self._moves.swap(
            tracked, state, row, coming, victims, probe.rewind_to, found_by, self.probing.newest(state, probe.rewind_to)
        )
        self._note(tracked, state, "evidence", brought, "swapped" if brought else "nothing")
        if not brought:
            return None
        tracked.recall.rerun_until = tracked.request.num_tokens
        self._rewound.append(request_id)
        return probe.rewind_to

    def note_work(self, report: TierReport) -> None:
        """Count what the worker's part took."""
        for work, seconds in (("copy", report.copy_seconds), ("evidence", report.evidence_seconds)):
            if seconds:
                self._controller.events.count(HOST_SECONDS, work, by=round(seconds * 1e9))

    # ---- both

    def _decided(self, tracked: TrackedRequest, state: SessionState, probing: Probing) -> None:
        tracked.recall.decided = True
        state.kept_pages -= tracked.recall.question_pages
        tracked.recall.question_pages = frozenset()
        if probing.recall.every_tokens is not None:
            tracked.recall.next_due = probing.due(tracked) + probing.recall.every_tokens

    def _note(
        self, tracked: TrackedRequest, state: SessionState, cause: str, brought: Mapping[int, Block], outcome: str
    ) -> None:
        events = self._controller.events
        events.note(RECALLS, state.agent, cause, outcome, request=tracked.request.request_id, session=state.key,
                    pages=len(brought))  # fmt: skip
        if brought:
            events.count(RECALLED_PAGES, state.agent, cause, by=len(brought))
