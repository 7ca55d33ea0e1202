"""select_pages: which pages go, once each has a score."""

from __future__ import annotations

import torch

from memdecay_kernels.checks import check_tensor
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
    check_tensor("page_scores", page_scores, (torch.float32,), (None,))
    check_tensor("evictable", evictable, (torch.bool,), (page_scores.numel(),))
    if count < 0:
        raise ValueError(f"{count} pages cannot be chosen")
    if out is None:
        out = torch.empty(count, dtype=torch.int64, device=page_scores.device)
    check_tensor("out", out, (torch.int64,), (count,))
    if not out.is_contiguous():
        raise ValueError("out has to be contiguous")
    native = native_for("select_pages", page_scores.device)
    (reference if native is None else native).select_pages(page_scores, evictable, out)
    return out
