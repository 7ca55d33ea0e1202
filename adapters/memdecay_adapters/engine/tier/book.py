"""The scheduler's book of the host tier: pages that leave and come back, and the copies that the worker owes.

Copies are noted in the order of the moves that need them and done in that order before the next forward pass. A block
that is freed is written by no earlier step than that one, so that what it held is still there to be copied, also
where another page takes the block in the same step. A page that this very step computes for another request is copied
before the step after it, ahead of all that is noted by then; until then nobody is told that the tier has it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from memdecay_adapters.engine.block_rows import Block
from memdecay_adapters.engine.events import DROPPED_HOST_PAGES, EngineEvents
from memdecay_adapters.engine.tier.catalogue import HostCatalogue, HostPage
from memdecay_adapters.engine.tier.messages import PageCopy
from memdecay_adapters.engine.tier.settings import HostTier
from memdecay_agents.ledger import EvictionReason, LedgerEntry
from memdecay_agents.recall.wishes import RecallWish
from memdecay_agents.session_state import SessionState


class TierBook:
    """One engine's tier, as its scheduler sees it. Owned by the scheduler's thread; nothing here raises.

    Args:
        tier: the budgets.
        page_bytes: of one page, all layers and all ranks.
        events: where dropped pages are counted.
    """

    def __init__(self, tier: HostTier, page_bytes: int, events: EngineEvents) -> None:
        per_agent = tier.max_bytes_per_agent
        self.tier = tier
        self.page_bytes = page_bytes
        self.catalogue = HostCatalogue(
            tier.memory_pages(page_bytes) + tier.disk_pages(page_bytes),
            None if per_agent is None else per_agent // page_bytes,
        )
        self._events = events
        self._copies: list[PageCopy] = []
        self._after_step: list[tuple[HostPage, PageCopy]] = []
        self._copied_now: list[HostPage] = []
        """Pages whose copies, which had to wait a step, are the first of ``_copies``."""
        self._wishes: dict[str, RecallWish] = {}

    # ---- pages that leave and come back

    def page_out(
        self,
        state: SessionState,
        row: Sequence[Block],
        entries: Sequence[LedgerEntry],
        being_computed: Container[int] = (),
    ) -> None:
        """Pages are about to leave a row: what the tier does not have yet is to be copied.

        Args:
            state: whose pages they are.
            row: with the pages still in it.
            entries: of their eviction.
            being_computed: ids of blocks that this step writes for others: they are copied before the next one.
        """
        agent = (state.session_id.tenant, state.agent)
        dropped = 0
        for entry in entries:
            placed = self.catalogue.put(state.key, agent, entry)
            dropped += placed.dropped
            if placed.slot is not None:
                copy = PageCopy("out", row[entry.page].block_id, placed.slot)
                if copy.block in being_computed:
                    page = self.catalogue.of(state.key)[entry.page]
                    page.pending = True
                    self._after_step.append((page, copy))
                else:
                    self._copies.append(copy)
        if dropped:
            self._events.count(DROPPED_HOST_PAGES, state.agent, by=dropped)

    def page_in(
        self,
        state: SessionState,
        pages: Sequence[tuple[HostPage, Block, float]],
        request_id: str,
        computed_tokens: int,
        cause: str = "evidence",
    ) -> list[LedgerEntry]:
        """Pages were put back into a row: their bytes are to be copied.

        Args:
            state: whose pages they are.
            pages: each page of the tier, the block that it has now, and why it came (its evidence, 0 for a wish).
            request_id: whose row it is.
            computed_tokens: the first token that sees them again.
            cause: the one part of the score; "repair": the page goes again when the repair has ended.

        Returns:
            An entry for each page.
        """
        entries = []
        for position, (page, block, evidence) in enumerate(pages):
            self._copies.append(PageCopy("in", block.block_id, page.slot))
            self.catalogue.restored(page)
            entries.append(
                page.entry.model_copy(
                    update={
                        "turn": state.turn,
                        "request_id": request_id,
                        "clock_ticks": state.tokens.clock_ticks,
                        "computed_tokens": computed_tokens,
                        "score": evidence,
                        "parts": {cause: evidence},
                        "order_position": position,
                        "reason": EvictionReason.swapped_in,
                    }
                )
            )
        state.restore(entries)
        return entries

    def take_copies(self) -> list[PageCopy]:
        """The copies noted since the last step; those of what that step wrote come first."""
        copies, self._copies = self._copies, []
        for page in self._copied_now:
            page.pending = False
        self._copied_now = []
        for page, copy in self._after_step:
            if self.catalogue.of(page.session).get(page.page) is page:  # else its slot may be another's by now
                self._copies.append(copy)
                self._copied_now.append(page)
        self._after_step = []
        return copies

    # ---- sessions that end or go back

    def forget(self, state: SessionState) -> None:
        """The session lost its row: its pages are of no more use."""
        self.catalogue.drop(state.key)
        self._wishes.pop(state.key, None)

    def rewind(self, state: SessionState, tokens: int) -> None:
        """The session goes back to its first ``tokens`` tokens; a page that is not whole any more is useless."""
        self.catalogue.drop(state.key, tokens // state.config.page_size_tokens)

    # ---- wishes for the next turn

    def wish(self, state: SessionState, wish: RecallWish) -> None:
        """The session's next turn will need these tokens."""
        self._wishes[state.key] = self._wishes.get(state.key, RecallWish()) + wish

    def take_wish(self, state: SessionState) -> RecallWish:
        """What was wished for the turn that begins now; empty: nothing."""
        return self._wishes.pop(state.key, RecallWish())
