"""When a turn's newest queries are asked about pages, and about which: those away, those that may go, those pinned.

prompt    once, by its last step
answer    after each so many generated tokens, where the user wants it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memdecay_adapters.engine.block_rows import held_pages
from memdecay_adapters.engine.controller import EvictionController
from memdecay_adapters.engine.tier.catalogue import HostPage
from memdecay_adapters.engine.tier.messages import Probe
from memdecay_adapters.engine.tier.moves import SwapCache
from memdecay_adapters.engine.tier.settings import Recall
from memdecay_adapters.engine.tracked_request import TrackedRequest
from memdecay_agents.arrays import BoolArray
from memdecay_agents.pages import PageView
from memdecay_agents.session_state import SessionState


@dataclass(frozen=True)
class OpenProbe:
    """A probe whose evidence is on its way."""

    rewind_to: int
    """The first token that is computed again if pages change places."""
    away: list[HostPage]
    retained: list[int]
    """Pages on the device that may leave."""
    recent: BoolArray
    """bool ``[retained]``: pages that leave last."""
    room: int
    """Pages that may come without another leaving."""
    pinned: list[int]
    """Pages on the device that are asked about and stay."""


class Probing:
    """Asks for one engine's requests. Owned by the scheduler's thread; nothing here raises on a user's input.

    Args:
        controller: knows the requests and their sessions.
        cache: knows their rows.
        away: a session's pages that are in the tier alone, ascending.
        recall: how pages come back.
        chunk_tokens: most tokens of one engine step.
    """

    def __init__(
        self,
        controller: EvictionController,
        cache: SwapCache,
        away: Callable[[str], list[HostPage]],
        recall: Recall,
        chunk_tokens: int,
    ) -> None:
        self.recall = recall
        self._controller = controller
        self._cache = cache
        self._away = away
        self._chunk_tokens = chunk_tokens

    def may_ask(self, tracked: TrackedRequest) -> bool:
        """Whether evidence is still to be weighed: before a turn's first token, and every so many if that is wanted.

        Never where prompt log-probabilities are asked for, which would be given twice.
        """
        request, again = tracked.request, tracked.recall.next_due > 0
        return (
            (again or not tracked.recall.decided)
            and tracked.budget is not None
            and (again or request.num_tokens == request.num_prompt_tokens)
            and getattr(request.sampling_params, "prompt_logprobs", None) is None
        )

    def due(self, tracked: TrackedRequest) -> int:
        """Tokens of which the newest are to be asked next: the prompt's, then the answer's every so many."""
        return max(tracked.recall.next_due, tracked.request.num_tokens)

    def rerun_from(self, tracked: TrackedRequest) -> int:
        """The first token of what is computed again, if the pages before it allow."""
        if tracked.recall.decided:
            return max(tracked.request.num_prompt_tokens, self.due(tracked) - (self.recall.every_tokens or 0))
        asked = self._chunk_tokens if self.recall.rerun == "turn" else self.recall.rerun
        return max(tracked.continued_tokens, tracked.request.num_prompt_tokens - min(asked, self._chunk_tokens))

    def open(self, request_id: str, tracked: TrackedRequest, state: SessionState) -> OpenProbe | None:
        """What the turn's queries are to be asked about; None: there is nothing to swap."""
        if tracked.recall.decided:
            state.kept_pages -= tracked.recall.recalled  # what an answer needed before may make room
        row, page = self._cache.row(request_id), state.config.page_size_tokens
        holes = [number for number, block in enumerate(row) if block.is_null]
        fixed_pages = max(self._cache.published_pages(request_id), max(holes, default=-1) + 1)  # not to be written
        rewind_to = max(self.rerun_from(tracked), fixed_pages * page)
        if rewind_to >= self.due(tracked):
            return None
        away = [one for one in self._away(state.key) if one.page < rewind_to // page]
        if not away:
            return None
        held = held_pages(row)
        view = state.view(rewind_to, held, self.newest(state, rewind_to))
        retained = view.page_index[view.evictable].tolist()
        recent = (view.page_index[view.evictable] + 1) * page > rewind_to - state.config.recent_tokens
        room = self._room(tracked, state, len(held))
        if not retained and not room:
            return None
        return OpenProbe(rewind_to, away, retained, recent, room, self._pinned(view, self.due(tracked) // page))

    def message(self, request_id: str, opened: OpenProbe) -> Probe:
        """What the worker is told of a probe."""
        row = self._cache.row(request_id)
        return Probe(
            [one.slot for one in opened.away], [row[page].block_id for page in opened.retained + opened.pinned]
        )

    def newest(self, state: SessionState, rewind_to: int) -> int:
        """Where the window of recent pages that stay ends for a swap: behind what is computed again it is empty."""
        return rewind_to + self.recall.recent_may_leave * state.config.recent_tokens

    def _pinned(self, view: PageView, full_pages: int) -> list[int]:
        """The pinned pages that are asked about; what every query attends to, the sink, is none of them, nor is a page
        that is not full: beyond its tokens it has what stood in its block before."""
        if not self.recall.least_share:
            return []
        pages: list[int] = view.page_index[view.pinned].tolist()
        return [page for page in pages if self._controller.config.sink_pages <= page < full_pages]

    def _room(self, tracked: TrackedRequest, state: SessionState, held_pages: int) -> int:
        """Pages of the reserve that are free, when the page of the first token behind the prompt is left out."""
        next_page = int(tracked.request.num_prompt_tokens % state.config.page_size_tokens == 0)
        return max(min(self.recall.reserve_pages, (state.budget_pages or 0) - held_pages - next_page), 0)
