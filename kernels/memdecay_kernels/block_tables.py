"""compact_block_table: drop evicted pages from block-table rows, keep the order of the rest.

Attention over the compacted row equals attention over the whole row with the evicted tokens masked: keys
carry their rotary position already, so only *which* pages are read changes, never where they stand.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from memdecay_kernels.implementations import native_for
from memdecay_kernels.reference import tables as reference


class CompactTable(NamedTuple):
    """Block-table rows without holes."""

    block_table: torch.Tensor
    """int32 ``[requests, max_pages]``: retained page ids first, zeros behind."""
    kept_tokens: torch.Tensor
    """int32 ``[requests]``: retained tokens (kept length; the sequence length stays what it was)."""
    kept_pages: torch.Tensor
    """bool ``[requests, max_pages]``: which logical pages were retained."""


def compact_block_table(
    block_table: torch.Tensor, seq_lens: torch.Tensor, page_size_tokens: int, null_page: int = 0
) -> CompactTable:
    """Compact rows on copies; the inputs are not written.

    Args:
        block_table: int32 ``[requests, max_pages]``, logical page order; evicted entries hold
            ``null_page``. The page of the newest token is never evicted.
        seq_lens: int32 ``[requests]``: logical lengths in tokens.
        page_size_tokens: tokens in a page.
        null_page: the id that marks an evicted page.
    """
    kept = torch.empty(block_table.shape, dtype=torch.bool, device=block_table.device)
    table, kept_tokens = (
        torch.empty_like(block_table, memory_format=torch.contiguous_format),
        torch.empty_like(seq_lens),
    )
    native = native_for("compact_block_table", block_table.device)
    if native is not None and native.compact_block_table(
        block_table, seq_lens, page_size_tokens, null_page, table, kept_tokens, kept
    ):
        return CompactTable(table, kept_tokens, kept)
    return CompactTable(*reference.compact_block_table(block_table, seq_lens, page_size_tokens, null_page))
