"""Rows without holes, made once and used again in every step until a page comes or goes.

In three of four decode steps of a batch no row changes: then only the lengths grow, by what was computed.
"""

from __future__ import annotations

import numpy as np
import torch

from memdecay_kernels import CompactTable, compact_block_table


class KeptRows:
    """The compacted rows of the newest step; all tensors are on the host.

    Args:
        page_size_tokens: tokens in a page.
    """

    def __init__(self, page_size_tokens: int) -> None:
        self._page = page_size_tokens
        self._rows = np.zeros((0, 0), dtype=np.int32)
        self._pages_used = np.zeros(0, dtype=np.int32)
        self._made: CompactTable | None = None
        self._dropped_tokens = torch.zeros(0, dtype=torch.int32)
        self.has_holes = False
        """Whether the newest rows lack a page."""

    def of(self, block_table: torch.Tensor, seq_lens: torch.Tensor) -> CompactTable:
        """The rows of a step; see `compact_block_table`. What is returned must not be written.

        Args:
            block_table: int32 ``[requests, max_pages]``.
            seq_lens: int32 ``[requests]``: logical lengths in tokens.

        Raises:
            ValueError: dtypes or shapes that do not fit.
        """
        rows, pages_used = block_table.numpy(), (seq_lens.numpy() + (self._page - 1)) // self._page
        if (
            self._made is not None
            and rows.shape == self._rows.shape
            and (pages_used == self._pages_used).all()
            and (rows == self._rows).all()
        ):
            return self._made._replace(kept_tokens=seq_lens - self._dropped_tokens)
        made = compact_block_table(block_table, seq_lens, self._page)
        self._rows, self._pages_used, self._made = rows.copy(), pages_used, made
        self._dropped_tokens = seq_lens - made.kept_tokens
        self.has_holes = bool(self._dropped_tokens.any())
        return made
