"""vLLM's KV-cache manager for full attention, whose running requests may lose pages.

The scheduler calls `remove_skipped_blocks` before it allocates a request's next pages. There the controller
plans, and here the plan is carried out: entries of the block table become the null block and the blocks go
back to the pool while the request lives. Tables are edited, pages never written, so a page that other
requests share (a cached prefix) stays theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import Request

from memdecay_adapters.engine.block_rows import Block, held_pages
from memdecay_adapters.engine.controller import EvictionController
from memdecay_adapters.engine.events import EXPIRED_SESSIONS
from memdecay_adapters.engine.pressure import PoolPressure
from memdecay_adapters.engine.tier.swaps import Swaps


class MemDecayManager(FullAttentionManager):
    """Full attention with holes. Without a bound controller it behaves as its base class."""

    controller: EvictionController | None = None
    """Bound by the connector once the scheduler has built its cache manager."""
    chunk_pages: ClassVar[int] = 0
    """Pages of one engine step's tokens; set when an engine core starts, of which a process has one."""
    pressure: PoolPressure | None = None
    """Makes room when pages run out; bound together with the controller."""
    swaps: Swaps | None = None
    """Brings pages back from host memory, where there is a tier; bound together with the controller."""

    @classmethod
    def find_longest_cache_hit(
        cls,
        block_hashes: Any,
        max_length: int,
        kv_cache_group_ids: list[int],
        block_pool: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """See the base class; a hit leaves room for the first chunk behind it.

        All pages of a hit are taken at once, what exceeds the budget goes back only then: a hit as large as the
        pool would wait for pages that there never are.
        """
        pages = block_pool.num_gpu_blocks - 2 - cls.chunk_pages
        if cls.chunk_pages:
            max_length = min(max_length, max(pages, 0) * block_pool.hash_block_size)
        return super().find_longest_cache_hit(block_hashes, max_length, kv_cache_group_ids, block_pool, *args, **kwargs)

    def remove_skipped_blocks(
        self, request_id: str, processed_computed_tokens: int, num_prompt_tokens: int | None = None
    ) -> None:
        """Evict so that what the request holds, and in decode the page it needs next, is within its budget.

        Args:
            request_id: the request about to be scheduled.
            processed_computed_tokens: tokens whose keys and values are complete; only their pages may go.
            num_prompt_tokens: the prompt's length in tokens.
        """
        blocks = self.req_to_blocks.get(request_id)
        if self.controller is None or not blocks:
            return
        if self.controller.is_settled(request_id, len(blocks), processed_computed_tokens):
            return
        self.drop_pages(
            blocks,
            self.controller.pages_to_evict(request_id, held_pages(blocks), len(blocks), processed_computed_tokens),
        )

    def add_local_computed_blocks(
        self,
        request_id: str,
        new_computed_blocks: Sequence[KVCacheBlock],
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
    ) -> None:
        """Take over a cached prefix; what of it exceeds the budget is left to the pool at once."""
        super().add_local_computed_blocks(
            request_id, new_computed_blocks, num_local_computed_tokens, num_external_computed_tokens
        )
        if self.controller is None or num_external_computed_tokens or not new_computed_blocks:
            return
        if self.controller.matched_row_pages(request_id):
            self._continue_session(request_id, num_local_computed_tokens)
        else:
            self.controller.prefix_hit(request_id, num_local_computed_tokens)
            self.remove_skipped_blocks(request_id, num_local_computed_tokens)

    def allocate_external_computed_blocks(
        self,
        request_id: str,
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
        record_for_zeroing: bool = True,
    ) -> None:
        """Tokens from outside are those of the idle session that the request continues: nothing is allocated."""
        if self.controller is None:
            super().allocate_external_computed_blocks(
                request_id, num_local_computed_tokens, num_external_computed_tokens, record_for_zeroing
            )
        else:
            self._continue_session(request_id, num_local_computed_tokens + num_external_computed_tokens)

    def _continue_session(self, request_id: str, tokens: int) -> None:
        """Take over the row of an idle session up to ``tokens``; nothing is computed or copied.

        The session's row replaces a cached prefix: it says which pages were evicted, and they stay so.
        """
        assert self.controller is not None
        session = self.controller.continue_session(request_id)
        row = self.req_to_blocks[request_id]
        self.free_row(row)
        pages = self.pages_for(tokens)
        row[:] = session.blocks[:pages]
        self.free_row(session.blocks[pages:])
        self.num_cached_block[request_id] = min(session.published_pages, tokens // self.block_size)
        self.remove_skipped_blocks(request_id, tokens)

    def allocate_new_blocks(self, request_id: str, num_tokens: int, num_tokens_main_model: int) -> list[KVCacheBlock]:
        """See the base class; tells the controller what the request holds now."""
        new_blocks = super().allocate_new_blocks(request_id, num_tokens, num_tokens_main_model)
        if self.controller is not None:
            blocks = self.req_to_blocks[request_id]
            if not new_blocks and self.controller.is_settled(request_id, len(blocks), num_tokens - 1):
                return new_blocks
            self.controller.allocated(request_id, held_pages(blocks), len(blocks))
            if self.swaps is not None:
                self.swaps.begin_turn(request_id)
        return new_blocks

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock],
        *args: Any,
        apply_admission_cap: bool = False,
        **kwargs: Any,
    ) -> int:
        """See the base class; three things differ.

        For admission a request with a budget needs one chunk, never its length: its guarantee is reserved. Pages of
        the session that it continues are there already. And others make room before it is said that there is none.
        """
        if self.controller is None:
            return super().get_num_blocks_to_allocate(
                request_id, num_tokens, new_computed_blocks, *args, apply_admission_cap=apply_admission_cap, **kwargs
            )
        row = self.req_to_blocks.get(request_id, ())
        continued = self.controller.matched_row_pages(request_id) if not row else 0
        first_pages = self.controller.first_pages(request_id) if apply_admission_cap else None
        if first_pages is not None:
            there = max(len(row), continued, len(new_computed_blocks))
            num_tokens = min(num_tokens, (there + first_pages) * self.block_size)
        while True:
            needed = super().get_num_blocks_to_allocate(
                request_id, num_tokens, new_computed_blocks, *args, apply_admission_cap=apply_admission_cap, **kwargs
            )
            needed -= min(max(continued - len(new_computed_blocks), 0), needed)
            pressure = self.pressure if needed > self.free_page_count() else None
            # a page of the cached prefix whose last holder gave it up just now is free and needed at once: count anew
            if pressure is None or not pressure.make_room(request_id, needed):
                return needed

    def cache_blocks(
        self, request: Request, num_tokens: int, retention_interval: int | None = None, **kwargs: Any
    ) -> None:
        """Publish full pages to the prefix cache, but none computed after the request's first eviction.

        Their keys and values depend on which pages were gone; a plain prefix hash does not say so.
        """
        if self.controller is not None:
            clean_tokens = self.controller.clean_tokens(request.request_id)
            if clean_tokens is not None:
                num_tokens = min(num_tokens, clean_tokens)
        super().cache_blocks(request, num_tokens, retention_interval, **kwargs)

    def pop_blocks_for_free(self, request_id: str) -> list[KVCacheBlock]:
        """See the base class; called at finish, abort and preemption. What a session keeps is not freed."""
        published = self.num_cached_block.get(request_id, 0)
        blocks = super().pop_blocks_for_free(request_id)
        if self.controller is not None:
            session = self.controller.retire(request_id)
            if session is not None:
                pages = self.pages_for(len(session.token_ids))
                session.blocks, blocks = list(blocks[:pages]), blocks[pages:]
                session.published_pages = min(published, pages)
                self.controller.give_up(self.controller.sessions.put(session), EXPIRED_SESSIONS)
        return [block for block in blocks if not block.is_null]

    # ---- what pool pressure needs

    def free_page_count(self) -> int:
        """Free or reclaimable pages of the pool."""
        return int(self.block_pool.get_num_free_blocks())

    def row(self, request_id: str) -> list[Block]:
        """A running request's row, in logical order."""
        return self.req_to_blocks.get(request_id, [])

    def published_pages(self, request_id: str) -> int:
        """Leading pages of a row that the prefix cache knows, or will when this step has run."""
        return int(self.num_cached_block.get(request_id, 0))

    def drop_pages(self, row: list[Block], pages: Sequence[int]) -> None:
        """Null entries of a row and free their blocks; the first of ``pages`` is reused first."""
        freed = [row[page] for page in pages]
        for page in pages:
            row[page] = self._null_block
        if freed:
            self.block_pool.free_blocks(freed)

    def fill_pages(self, row: list[Block], pages: Sequence[int]) -> list[Block]:
        """Give null entries of a row blocks again; there must be as many free ones."""
        blocks: list[Block] = list(self.block_pool.get_new_blocks(len(pages)))
        for page, block in zip(pages, blocks, strict=True):
            row[page] = block
        return blocks

    def free_row(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Give a row's blocks back to the pool, the last page first, so that it is reused first."""
        self.block_pool.free_blocks([block for block in reversed(blocks) if not block.is_null])

    def pages_for(self, num_tokens: int) -> int:
        """Pages that ``num_tokens`` tokens take."""
        return int(cdiv(num_tokens, self.block_size))
