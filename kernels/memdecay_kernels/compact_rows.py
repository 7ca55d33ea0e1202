"""compact_rows_into: block-table compaction on the device, into buffers that never move.

The same operation as `compact_block_table`, made for a stream that must not wait for the host: every shape
follows from the inputs' shapes, nothing is read back, and the results are written where a CUDA graph that
was captured earlier looks for them.

Not run on a GPU: tested on CPU tensors and, for the absence of host reads, on fake tensors.
"""

from __future__ import annotations

import torch

from memdecay_kernels.implementations import native_for


def compact_rows_into(
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    page_size_tokens: int,
    out_table: torch.Tensor,
    out_seq_lens: torch.Tensor,
    null_page: int = 0,
) -> None:
    """Write compacted rows and their lengths in tokens; the inputs are not written.

    Mask, running count, scatter: each retained entry goes to the column that is the number of retained
    entries before it. Dropped entries add 0 there, so that no column has to be set aside for them.

    A row without any retained page keeps its length. No live request has such a row, since the page of its
    newest token is never evicted; the dummy rows with which an engine warms up and captures graphs are all
    null pages, and run over them as in the stock engine. Padding rows have length 0 and stay so.

    Args:
        block_table: int32 ``[rows, pages]``, logical page order; evicted entries hold ``null_page``, and
            entries behind a row's length may hold anything.
        seq_lens: int32 ``[rows]``: logical lengths in tokens; 0 for padding rows.
        page_size_tokens: tokens in a page.
        out_table: int32, at least ``[rows, pages]``; its first ``rows`` rows are overwritten: retained page
            ids first, zeros behind. Must not overlap ``block_table``.
        out_seq_lens: int32, at least ``[rows]``; its first ``rows`` entries are overwritten: retained tokens.
        null_page: the id that marks an evicted page.

    Raises:
        ValueError: an output is too small.
    """
    rows, pages = block_table.shape
    if out_table.shape[0] < rows or out_table.shape[1] < pages or out_seq_lens.shape[0] < rows:
        raise ValueError(
            f"{rows} rows of {pages} pages do not fit buffers of {tuple(out_table.shape)} and "
            f"{tuple(out_seq_lens.shape)}"
        )
    native = native_for("compact_rows_into", block_table.device)
    if native is not None:
        native.compact_rows_into(block_table, seq_lens, page_size_tokens, out_table, out_seq_lens, null_page)
        return
    columns = torch.arange(pages, device=block_table.device, dtype=seq_lens.dtype)
    pages_used = (seq_lens + (page_size_tokens - 1)) // page_size_tokens
    used = columns.unsqueeze(0) < pages_used.unsqueeze(1)
    kept = used & (block_table != null_page)
    kept_so_far = kept.cumsum(1)
    target = out_table.narrow(0, 0, rows)
    target.zero_()
    target.scatter_add_(1, (kept_so_far - 1).clamp_(min=0), torch.where(kept, block_table, 0))
    kept_pages = kept.sum(1, dtype=seq_lens.dtype)
    kept_tokens = seq_lens - (used.sum(1, dtype=seq_lens.dtype) - kept_pages) * page_size_tokens
    torch.where(kept_pages > 0, kept_tokens, seq_lens, out=out_seq_lens.narrow(0, 0, rows))


class CompactRowBuffers:
    """Buffers for compacted rows that stay at one address for the life of an engine.

    Args:
        max_rows: most rows of a step, padding rows of CUDA graphs included.
        max_pages: most pages of a row.
        page_size_tokens: tokens in a page.
        device: where the rows are.
    """

    def __init__(self, max_rows: int, max_pages: int, page_size_tokens: int, device: torch.device | str) -> None:
        self.page_size_tokens = page_size_tokens
        self.table = torch.zeros(max_rows, max_pages, dtype=torch.int32, device=device)
        """int32 ``[max_rows, max_pages]``."""
        self.seq_lens = torch.zeros(max_rows, dtype=torch.int32, device=device)
        """int32 ``[max_rows]``: retained tokens."""

    def compact(self, block_table: torch.Tensor, seq_lens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compact a step's rows; see `compact_rows_into`.

        Args:
            block_table: int32 ``[rows, pages]``.
            seq_lens: int32 ``[rows]``, logical lengths in tokens.

        Returns:
            Views of the first ``rows`` rows of the buffers: int32 ``[rows, max_pages]`` and ``[rows]``.

        Raises:
            ValueError: more rows or pages than the buffers hold.
        """
        compact_rows_into(block_table, seq_lens, self.page_size_tokens, self.table, self.seq_lens)
        rows = block_table.shape[0]
        return self.table[:rows], self.seq_lens[:rows]
