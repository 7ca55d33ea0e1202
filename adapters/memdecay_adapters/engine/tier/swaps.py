"""Pages change places between the device and the tier: at a turn's start by wish, after its prompt by evidence.

    start of a turn   pages wished for come back, the lowest in the policy's order make room      nothing is computed
    end of its prompt evidence of the newest queries -> plan_swap -> the same number out and in   the turn runs again

A swap never adds a page to what the request holds beyond its budget; a reserve takes pages for which none has to leave.
Recent pages before what is computed again leave last. What came back stays for this turn, unless the budget cannot be
met otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from memdecay_adapters.engine.block_rows import Block, held_pages
from memdecay_adapters.engine.controller import EvictionController
from memdecay_adapters.engine.events import HOST_COPIED_BYTES, HOST_SECONDS, RECALLED_PAGES, RECALLS
from memdecay_adapters.engine.tier.book import TierBook
from memdecay_adapters.engine.tier.catalogue import HostPage
from memdecay_adapters.engine.tier.messages import Probe, QueryWindow, TierDirections
from memdecay_adapters.engine.tier.report import TierReport
from memdecay_adapters.engine.tracked_request import TrackedRequest
from memdecay_agents.arrays import BoolArray
from memdecay_agents.ledger import EvictionReason
from memdecay_agents.pages import PageView
from memdecay_agents.recall import EvidenceArray, plan_swap, with_neighbours
from memdecay_agents.recall.wishes import RecallWish, wished_pages
from memdecay_agents.session_state import SessionState


class SwapCache(Protocol):
    """The part of the cache manager that is needed here."""

    def free_page_count(self) -> int:
        """Free or reclaimable pages."""

    def row(self, request_id: str) -> list[Block]:
        """A running request's row."""

    def published_pages(self, request_id: str) -> int:
        """Leading pages of its row that the prefix cache knows."""

    def drop_pages(self, row: list[Block], pages: Sequence[int]) -> None:
        """Null entries of a row and free their blocks."""

    def fill_pages(self, row: list[Block], pages: Sequence[int]) -> list[Block]:
        """Give evicted pages blocks again."""


class OpenProbe:
    """A probe whose evidence is on its way."""

    def __init__(
        self,
        rewind_to: int,
        away: list[HostPage],
        retained: list[int],
        recent: BoolArray,
        room: int,
        pinned_pages: int,
    ) -> None:
        self.rewind_to = rewind_to
        self.away = away
        self.retained = retained
        self.recent = recent
        """bool ``[retained]``: pages that leave last."""
        self.room = room
        """Pages that may come without another leaving."""
        self.pinned_pages = pinned_pages
        """Pages behind the retained ones that are asked about and stay."""


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
        self._chunk_tokens = chunk_tokens
        self._recall = book.tier.recall
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
        if self._may_probe(tracked):
            page, request = state.config.page_size_tokens, tracked.request
            first = self._rerun_from(tracked) // page
            tracked.recall.question_pages = frozenset(range(first, request.num_prompt_tokens // page + 1))
            state.kept_pages |= tracked.recall.question_pages
        wish = self._book.take_wish(state) + (tracked.hints.recall or RecallWish())
        if wish:
            self._grant(tracked, state, wish)

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
        brought = self._swap(tracked, state, row, coming, max(len(coming) - room, 0), processed)
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
        if self._recall is None:
            return directions
        for request_id, tokens in scheduled_tokens.items():
            found = self._controller.with_state(request_id)
            if found is None or not self._may_probe(found[0]):
                continue
            tracked, state = found
            before, due = tracked.request.num_computed_tokens, self._due(tracked)
            first = max(before, due - self._recall.query_tokens)
            if before + tokens > first:
                directions.windows[request_id] = QueryWindow(first, before + tokens - first)
            if before + tokens >= due:
                probe = self._probe(request_id, tracked, state, due)
                if probe is None:
                    self._decided(tracked, state)
                else:
                    directions.probes[request_id] = probe
        return directions

    def _due(self, tracked: TrackedRequest) -> int:
        """Tokens of which the newest are to be asked next: the prompt's, then the answer's every so many."""
        return max(tracked.recall.next_due, tracked.request.num_tokens)

    def _probe(self, request_id: str, tracked: TrackedRequest, state: SessionState, due: int) -> Probe | None:
        """What the turn's queries are to be asked about; None: there is nothing to swap."""
        if tracked.recall.decided:
            state.kept_pages -= tracked.recall.recalled  # what an answer needed before may make room
        row, page = self._cache.row(request_id), state.config.page_size_tokens
        holes = [number for number, block in enumerate(row) if block.is_null]
        fixed_pages = max(self._cache.published_pages(request_id), max(holes, default=-1) + 1)  # not to be written
        rewind_to = max(self._rerun_from(tracked), fixed_pages * page)
        if rewind_to >= due:
            return None
        away = [one for one in self._book.catalogue.away(state.key) if one.page < rewind_to // page]
        if not away:
            return None
        held = held_pages(row)
        view = state.view(rewind_to, held, self._newest(state, rewind_to))
        retained = view.page_index[view.evictable].tolist()
        recent = (view.page_index[view.evictable] + 1) * page > rewind_to - state.config.recent_tokens
        room = self._room(tracked, state, len(held))
        if not retained and not room:
            return None
        pinned = self._pinned(view)
        self._open[request_id] = OpenProbe(rewind_to, away, retained, recent, room, len(pinned))
        return Probe([one.slot for one in away], [row[one].block_id for one in retained + pinned])

    def _pinned(self, view: PageView) -> list[int]:
        """The pinned pages that are asked about; what every query attends to, the sink, is none of them."""
        assert self._recall is not None
        if not self._recall.least_share:
            return []
        pages: list[int] = view.page_index[view.pinned].tolist()
        return [page for page in pages if page >= self._controller.config.sink_pages]

    def _newest(self, state: SessionState, rewind_to: int) -> int:
        """Where the window of recent pages that stay ends for a swap: behind what is computed again it is empty."""
        assert self._recall is not None
        return rewind_to + self._recall.recent_may_leave * state.config.recent_tokens

    def _room(self, tracked: TrackedRequest, state: SessionState, held_pages: int) -> int:
        """Pages of the reserve that are free, when the page of the first token behind the prompt is left out."""
        assert self._recall is not None
        next_page = int(tracked.request.num_prompt_tokens % state.config.page_size_tokens == 0)
        return max(min(self._recall.reserve_pages, (state.budget_pages or 0) - held_pages - next_page), 0)

    def decide(self, request_id: str, evidence: EvidenceArray | None) -> int | None:
        """Swap by what the worker found, if it says so.

        Args:
            request_id: whose probe it was; it has not been preempted since.
            evidence: float64: of the probe's slots, then of its blocks; None or not finite: the worker has none.

        Returns:
            The token from which the turn is to be computed again; None: it goes on.
        """
        probe, found = self._open.pop(request_id, None), self._controller.with_state(request_id)
        if probe is None or found is None or self._recall is None:
            return None
        tracked, state = found
        self._decided(tracked, state)
        host = len(probe.away)
        movable = host + len(probe.retained)
        if evidence is None or evidence.shape != (movable + probe.pinned_pages,) or not np.isfinite(evidence).all():
            self._note(tracked, state, "evidence", {}, "lost")
            return None
        pages = np.array([one.page for one in probe.away] + probe.retained, dtype=np.int64)
        least = self._recall.least_share * float(evidence.max())
        evidence = with_neighbours(evidence[:movable], pages, self._recall.neighbour_share)
        plan = plan_swap(
            evidence[:host], evidence[host:], self._recall.max_pages,
            least_evidence=least, free_pages=probe.room, last=probe.recent,
        )  # fmt: skip
        victims = [probe.retained[index] for index in plan.send_out.tolist()]
        coming = [probe.away[index] for index in plan.bring_in.tolist()]
        found_by = {probe.away[index].page: float(evidence[index]) for index in plan.bring_in.tolist()}
        row = self._cache.row(request_id)
        brought = self._swap(
            tracked, state, row, coming, victims, probe.rewind_to, found_by, self._newest(state, probe.rewind_to)
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

    def _swap(
        self,
        tracked: TrackedRequest,
        state: SessionState,
        row: list[Block],
        coming: Sequence[HostPage],
        victims: Sequence[int] | int,
        processed: int,
        evidence: Mapping[int, float] | None = None,
        newest_tokens: int | None = None,
    ) -> dict[int, Block]:
        """Send pages out and bring others in; what comes is limited by the blocks that there are then.

        Args:
            tracked: whose turn it is.
            state: its session.
            row: its row.
            coming: pages of the tier, the most wanted first.
            victims: pages to send out, or how many, then the policy's lowest.
            processed: the first token that sees the row as it is then.
            evidence: by page, for the ledger.
            newest_tokens: where the recent window ends; None: at ``processed``.

        Returns:
            The pages that came, with their blocks.
        """
        if not coming:
            return {}
        request_id, held = tracked.request.request_id, held_pages(row)
        self._book.catalogue.hold(coming)
        if victims:
            plan = state.plan(processed, held, pages_to_free=len(held), newest_tokens=newest_tokens)
            if isinstance(victims, int):
                leaving = plan.pages[:victims]
            else:
                leaving = tuple(page for page in victims if page in plan.scores)
            plan = dataclasses.replace(plan, pages=leaving, shortfall_pages=0, refusal=None)
            freed = self._controller.book(request_id, plan, processed, EvictionReason.swapped_out)
            self._cache.drop_pages(row, freed)
        came = coming[: self._cache.free_page_count()]
        self._book.catalogue.hold(coming[len(came) :], held=False)
        blocks = self._cache.fill_pages(row, [page.page for page in came])
        found = evidence or {}
        self._book.page_in(
            state,
            [(page, block, found.get(page.page, 0.0)) for page, block in zip(came, blocks, strict=True)],
            request_id,
            processed,
        )
        brought = {page.page: block for page, block in zip(came, blocks, strict=True)}
        self._controller.note_restored(request_id, brought)
        tracked.recall.recalled.update(brought)
        if tracked.clean_pages is not None:
            tracked.clean_pages = min(tracked.clean_pages, processed // state.config.page_size_tokens)
        state.kept_pages |= frozenset(brought)
        return brought

    def _decided(self, tracked: TrackedRequest, state: SessionState) -> None:
        tracked.recall.decided = True
        state.kept_pages -= tracked.recall.question_pages
        tracked.recall.question_pages = frozenset()
        if self._recall is not None and self._recall.every_tokens is not None:
            tracked.recall.next_due = self._due(tracked) + self._recall.every_tokens

    def _may_probe(self, tracked: TrackedRequest) -> bool:
        """Evidence is weighed before a turn's first token, and then every so many if that is wanted; never where prompt
        log-probabilities are asked for, which would be given twice."""
        request = tracked.request
        return (
            self._recall is not None
            and (not tracked.recall.decided or tracked.recall.next_due > 0)
            and tracked.budget is not None
            and (request.num_tokens == request.num_prompt_tokens or tracked.recall.next_due > 0)
            and getattr(request.sampling_params, "prompt_logprobs", None) is None
        )

    def _rerun_from(self, tracked: TrackedRequest) -> int:
        """The first token of what is computed again, if the pages before it allow."""
        assert self._recall is not None
        if tracked.recall.decided:
            assert self._recall.every_tokens is not None
            return max(tracked.request.num_prompt_tokens, self._due(tracked) - self._recall.every_tokens)
        asked = self._chunk_tokens if self._recall.rerun == "turn" else self._recall.rerun
        return max(tracked.continued_tokens, tracked.request.num_prompt_tokens - min(asked, self._chunk_tokens))

    def _note(
        self, tracked: TrackedRequest, state: SessionState, cause: str, brought: Mapping[int, Block], outcome: str
    ) -> None:
        events = self._controller.events
        events.note(RECALLS, state.agent, cause, outcome, request=tracked.request.request_id, session=state.key,
                    pages=len(brought))  # fmt: skip
        if brought:
            events.count(RECALLED_PAGES, state.agent, cause, by=len(brought))
