"""Pages of a row change places with pages of the tier, booked in one go."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

from memdecay_adapters.engine.block_rows import Block, held_pages
from memdecay_adapters.engine.controller import EvictionController
from memdecay_adapters.engine.tier.book import TierBook
from memdecay_adapters.engine.tier.catalogue import HostPage
from memdecay_adapters.engine.tracked_request import TrackedRequest
from memdecay_agents.ledger import EvictionReason
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


class PageMoves:
    """Carries swaps out. Owned by the scheduler's thread; nothing here raises on a user's input.

    Args:
        controller: plans and books.
        cache: gives blocks and takes them.
        book: of the tier.
    """

    def __init__(self, controller: EvictionController, cache: SwapCache, book: TierBook) -> None:
        self._controller = controller
        self._cache = cache
        self._book = book

    def swap(
        self,
        tracked: TrackedRequest,
        state: SessionState,
        row: list[Block],
        coming: Sequence[HostPage],
        victims: Sequence[int] | int,
        processed: int,
        evidence: Mapping[int, float] | None = None,
        newest_tokens: int | None = None,
        cause: str = "evidence",
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
            cause: for the ledger; see `TierBook.page_in`.

        Returns:
            The pages that came, with their blocks.
        """
        if not coming:
            return {}
        request_id, held = tracked.request.request_id, held_pages(row)
        self._book.catalogue.hold(coming)
        if victims:
            count = victims if isinstance(victims, int) else len(victims)
            plan = state.plan(
                processed, held, pages_to_free=len(held), newest_tokens=newest_tokens, leaving_pages=count
            )
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
            cause,
        )
        brought = {page.page: block for page, block in zip(came, blocks, strict=True)}
        self._controller.note_restored(request_id, brought)
        tracked.recall.recalled.update(brought)
        if tracked.clean_pages is not None:
            tracked.clean_pages = min(tracked.clean_pages, processed // state.config.page_size_tokens)
        state.kept_pages |= frozenset(brought)
        return brought
