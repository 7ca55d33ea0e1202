"""select_pages: which pages go, once each has a score."""

from __future__ import annotations

import torch

from memdecay_kernels.implementations import native_for
from memdecay_kernels.reference import pages as reference


def select_pages(
    page_scores: torch.Tensor, evictable: torch.Tensor, count: int, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The ``count`` lowest-scoring evictable pages, lowest first; ties go to the lower index.

    Args:
        page_scores: float32 ``[P]``, finite.
        evictable: bool ``[P]``: neither pinned nor protected.
        count: pages wanted.
        out: int64 ``[count]``; by default a new tensor.

    Returns:
        ``out``: page indices, -1 behind the last where fewer are evictable.

    Raises:
        ValueError: arrays of different lengths, or a negative count.
    """
    if evictable.shape != page_scores.shape or count < 0:
        raise ValueError(f"{count} of {tuple(page_scores.shape)} scores with {tuple(evictable.shape)} flags")
    if out is None:
        out = torch.empty(count, dtype=torch.int64, device=page_scores.device)
    native = native_for("select_pages", page_scores.device)
    (reference if native is None else native).select_pages(page_scores, evictable, out)
    return out
