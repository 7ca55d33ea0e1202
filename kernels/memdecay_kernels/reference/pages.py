"""select_pages and copy_pages, defined."""

from __future__ import annotations

import torch


def select_pages(page_scores: torch.Tensor, evictable: torch.Tensor, out: torch.Tensor) -> None:
    """See `memdecay_kernels.select_pages`; writes ``out``, int64 ``[count]``."""
    candidates = torch.nonzero(evictable).flatten()
    order = torch.argsort(page_scores[candidates], stable=True)
    chosen = candidates[order[: out.numel()]]
    out.fill_(-1)
    out[: chosen.numel()] = chosen


def copy_pages(
    source: torch.Tensor, source_pages: torch.Tensor, target: torch.Tensor, target_pages: torch.Tensor
) -> None:
    """See `memdecay_kernels.copy_pages`; writes ``target``."""
    moved = source[source_pages.to(source.device)].to(target.device)
    target[target_pages.to(target.device)] = moved
