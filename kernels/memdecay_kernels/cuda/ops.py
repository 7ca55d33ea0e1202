"""The operations for tensors on a CUDA device, as the public functions call them; those have checked the arguments.

Functions that answer False leave the work to the torch reference.
"""

from __future__ import annotations

import torch

from memdecay_kernels.cuda import page_scores as scores_on_device
from memdecay_kernels.cuda import page_tables as tables_on_device
from memdecay_kernels.cuda.cuda_launcher import launcher_for
from memdecay_kernels.cuda.mass_call import DeviceMassCall
from memdecay_kernels.layouts import KeyLayout
from memdecay_kernels.native.mass_call import MassRows
from memdecay_kernels.terms import ObserveRule, ScoreTerms, TokenColumns


def attention_mass(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    layout: KeyLayout | None,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    query_ends: torch.Tensor,
    windows: torch.Tensor,
    scale: float,
    head_reduce: str,
    out: torch.Tensor,
    accumulate: bool,
) -> bool:
    """See `memdecay_kernels.attention_mass`; False where `mass_call` gives None."""
    rows = MassRows(block_table, context_lens, query_ends, windows)
    call = mass_call(rows, query, key_cache, layout, scale, head_reduce, out, accumulate)
    if call is not None:
        call.run(query, key_cache)
    return call is not None


def mass_call(
    rows: MassRows,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    layout: KeyLayout | None,
    scale: float,
    head_reduce: str,
    out: torch.Tensor,
    accumulate: bool,
) -> DeviceMassCall | None:
    """A call that layers of one shape share; None: a packed layout, types that differ, or too many queries at once."""
    call = DeviceMassCall(rows, query, key_cache, layout, scale, head_reduce, out, accumulate)
    return call if call.possible else None


def observe_tokens(
    columns: TokenColumns[torch.Tensor],
    token_index: torch.Tensor,
    mass: torch.Tensor,
    newest_mass: torch.Tensor | None,
    rule: ObserveRule,
    represented_queries: int,
    clock_ticks: int,
) -> None:
    """See `memdecay_kernels.observe_tokens`."""
    scores_on_device.observe_tokens(
        columns, token_index, mass, newest_mass, rule, represented_queries, clock_ticks,
        launcher=launcher_for(mass.device),
    )  # fmt: skip


def score_pages(
    columns: TokenColumns[torch.Tensor],
    pages: torch.Tensor,
    evictable: torch.Tensor,
    terms: ScoreTerms[torch.Tensor],
    page_size_tokens: int,
    processed_tokens: int,
    clock_ticks: int,
    out: torch.Tensor,
) -> None:
    """See `memdecay_kernels.score_pages`."""
    scores_on_device.score_pages(
        columns, pages, evictable, terms, page_size_tokens, processed_tokens, clock_ticks, out,
        launcher=launcher_for(pages.device),
    )  # fmt: skip


def select_pages(page_scores: torch.Tensor, evictable: torch.Tensor, out: torch.Tensor) -> None:
    """See `memdecay_kernels.select_pages`."""
    scores_on_device.select_pages(page_scores, evictable, out, launcher=launcher_for(page_scores.device))


def compact_block_table(
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    page_size_tokens: int,
    null_page: int,
    out_table: torch.Tensor,
    kept_tokens: torch.Tensor,
    kept_pages: torch.Tensor,
) -> bool:
    """See `memdecay_kernels.compact_block_table`; writes the last three."""
    tables_on_device.compact_table(
        block_table, seq_lens, page_size_tokens, null_page, out_table, kept_tokens, kept_pages,
        empty_rows_keep_length=False, launcher=launcher_for(block_table.device),
    )  # fmt: skip
    return True


def compact_rows_into(
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    page_size_tokens: int,
    out_table: torch.Tensor,
    out_seq_lens: torch.Tensor,
    null_page: int = 0,
) -> None:
    """See `memdecay_kernels.compact_rows_into`."""
    tables_on_device.compact_table(
        block_table, seq_lens, page_size_tokens, null_page, out_table, out_seq_lens, None,
        empty_rows_keep_length=True, launcher=launcher_for(block_table.device),
    )  # fmt: skip


def copy_pages(
    source: torch.Tensor, source_pages: torch.Tensor, target: torch.Tensor, target_pages: torch.Tensor
) -> bool:
    """See `memdecay_kernels.copy_pages`; False: a page is not contiguous, or memory of the host that is not pinned."""
    if not source_pages.numel():
        return True
    if not (source[0].is_contiguous() and target[0].is_contiguous()):
        return False
    if any(cache.device.type == "cpu" and not cache.is_pinned() for cache in (source, target)):
        return False
    device = source.device if source.is_cuda else target.device
    tables_on_device.copy_pages(
        source, source_pages.to(device), target, target_pages.to(device), launcher=launcher_for(device)
    )
    return True
