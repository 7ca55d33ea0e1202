"""score_pages, select_pages, copy_pages: reference operations on pages."""

from __future__ import annotations

import torch


def score_pages(
    base_priority: torch.Tensor,
    decay_rate_per_tick: torch.Tensor,
    age_ticks: torch.Tensor,
    attention: torch.Tensor,
    alpha: float,
    page_size_tokens: int,
) -> torch.Tensor:
    """Page means of the published token score ``b * exp(-lambda * age) + alpha * a``.

    Args:
        base_priority: float32 ``[tokens]``, b of each token's region.
        decay_rate_per_tick: float32 ``[tokens]``, lambda of each token's region.
        age_ticks: int64 ``[tokens]``, clock ticks since the token was written or last refreshed.
        attention: float32 ``[tokens]``, the attention term a.
        alpha: weight of the attention term.
        page_size_tokens: tokens in a page; ``tokens`` is a multiple of it.

    Returns:
        float32 ``[tokens / page_size_tokens]``.
    """
    decay = base_priority * torch.exp(-decay_rate_per_tick * age_ticks.float())
    return (decay + alpha * attention).view(-1, page_size_tokens).mean(1)


def select_pages(page_scores: torch.Tensor, evictable: torch.Tensor, count: int) -> torch.Tensor:
    """The ``count`` lowest-scoring evictable pages, lowest first; ties go to the lower index.

    Args:
        page_scores: float32 ``[pages]``.
        evictable: bool ``[pages]``: neither pinned nor protected.
        count: pages wanted; fewer are returned if fewer are evictable.

    Returns:
        int64 ``[<= count]`` page indices.
    """
    candidates = torch.nonzero(evictable).flatten()
    order = torch.argsort(page_scores[candidates], stable=True)
    return candidates[order[:count]]


def copy_pages(source: torch.Tensor, source_pages: torch.Tensor, target: torch.Tensor,
               target_pages: torch.Tensor) -> None:  # fmt: skip
    """Copy whole pages, bit for bit, between two caches of ``[num_pages, ...]`` (device or host).

    Args:
        source: ``[num_source_pages, ...]``.
        source_pages: int64 ``[n]``.
        target: ``[num_target_pages, ...]`` of the same page shape and dtype; written in place.
        target_pages: int64 ``[n]``, distinct.

    Raises:
        ValueError: page shapes or dtypes differ, or the two index lists have different lengths.
    """
    if source.shape[1:] != target.shape[1:] or source.dtype != target.dtype:
        raise ValueError(f"pages of {source.shape[1:]} {source.dtype} do not fit {target.shape[1:]} {target.dtype}")
    if source_pages.shape != target_pages.shape:
        raise ValueError(f"{source_pages.numel()} source pages for {target_pages.numel()} target pages")
    target[target_pages] = source[source_pages].to(target.device)
