"""compact_block_table, defined."""

from __future__ import annotations

import torch


def compact_block_table(
    block_table: torch.Tensor, seq_lens: torch.Tensor, page_size_tokens: int, null_page: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `memdecay_kernels.compact_block_table`: the table, the kept tokens, and which pages were kept."""
    columns = torch.arange(block_table.shape[1], device=block_table.device)
    used = columns[None, :] < ((seq_lens + page_size_tokens - 1) // page_size_tokens)[:, None]
    kept = used & (block_table != null_page)
    order = torch.argsort((~kept).to(torch.int8), dim=1, stable=True)
    compacted = torch.where(kept, block_table, torch.zeros_like(block_table)).gather(1, order)
    holes = (used & ~kept).sum(1, dtype=seq_lens.dtype)
    return compacted, seq_lens - holes * page_size_tokens, kept
