"""vLLM's KV-cache manager for full attention, whose running requests may lose pages.

The scheduler calls `remove_skipped_blocks` before it allocates a request's next pages. There the controller
plans, and here the plan is carried out: entries of the block table become the null block and the blocks go
back to the pool while the request lives. Tables are edited, pages never written, so a page that other
requests share (a cached prefix) stays theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import Request

from memdecay_adapters.engine.controller import EvictionController


class MemDecayManager(FullAttentionManager):
    """Full attention with holes. Without a bound controller it behaves as its base class."""

    controller: EvictionController | None = None
    """Bound by the connector once the scheduler has built its cache manager."""

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
        held = [page for page, block in enumerate(blocks) if not block.is_null]
        self._evict(
            request_id, self.controller.pages_to_evict(request_id, held, len(blocks), processed_computed_tokens)
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
        if self.controller is not None and new_computed_blocks:
            self.controller.prefix_hit(request_id, num_local_computed_tokens)
            self.remove_skipped_blocks(request_id, num_local_computed_tokens)

    def _evict(self, request_id: str, pages: Sequence[int]) -> None:
        if not pages:
            return
        blocks = self.req_to_blocks[request_id]
        freed = []
        for page in pages:
            freed.append(blocks[page])
            blocks[page] = self._null_block
        self.block_pool.free_blocks(freed)

    def allocate_new_blocks(self, request_id: str, num_tokens: int, num_tokens_main_model: int) -> list[KVCacheBlock]:
        """See the base class; tells the controller what the request holds now."""
        new_blocks = super().allocate_new_blocks(request_id, num_tokens, num_tokens_main_model)
        if self.controller is not None:
            blocks = self.req_to_blocks[request_id]
            self.controller.allocated(request_id, [i for i, block in enumerate(blocks) if not block.is_null])
        return new_blocks

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, *args: Any, apply_admission_cap: bool = False, **kwargs: Any
    ) -> int:
        """See the base class; for admission a request needs its budget and one chunk, never its length."""
        if apply_admission_cap and self.controller is not None:
            cap_pages = self.controller.admission_cap_pages(request_id)
            if cap_pages is not None:
                have = self.req_to_blocks.get(request_id, ())
                nulls = sum(block.is_null for block in have)
                most = (max(cap_pages, len(have) - nulls) + nulls) * self.block_size
                num_tokens = min(num_tokens, most)
        return super().get_num_blocks_to_allocate(
            request_id, num_tokens, *args, apply_admission_cap=apply_admission_cap, **kwargs
        )

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
        """See the base class; called at finish, abort and preemption, whose state ends here."""
        blocks = super().pop_blocks_for_free(request_id)
        if self.controller is not None:
            self.controller.released(request_id)
        return [block for block in blocks if not block.is_null]

    def pages_for(self, num_tokens: int) -> int:
        """Pages that ``num_tokens`` tokens take."""
        return int(cdiv(num_tokens, self.block_size))
