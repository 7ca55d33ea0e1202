"""The native operations on torch tensors on the host; the public functions have checked the arguments."""

from __future__ import annotations

import os
from typing import Any

import torch

from memdecay_kernels.layouts import KeyLayout
from memdecay_kernels.native import host
from memdecay_kernels.native.library import Library, load
from memdecay_kernels.native.mass_call import DTYPES, MassCall, MassRows, plain_layout
from memdecay_kernels.native.records import CompactArgs, CopyArgs, NormArgs
from memdecay_kernels.terms import ObserveRule, ScoreTerms, TokenColumns


def library() -> Library:
    """The library with the instruction set that `MEMDECAY_KERNELS` names."""
    loaded = load(os.environ.get("MEMDECAY_KERNELS", "auto"))
    if loaded is None:
        raise RuntimeError("the native library is not loaded")
    return loaded


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
    """See `memdecay_kernels.attention_mass`; False where the strides are none that the library reads."""
    rows = MassRows(block_table, context_lens, query_ends, windows)
    call = mass_call(rows, query, key_cache, layout, scale, head_reduce, out, accumulate)
    if call is None:
        return False
    call.run(query, key_cache)
    return True


def mass_call(
    rows: MassRows,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    layout: KeyLayout | None,
    scale: float,
    head_reduce: str,
    out: torch.Tensor,
    accumulate: bool,
) -> MassCall | None:
    """A filled `MassCall`; None where the strides are none that the library reads."""
    if query.stride(2) != 1 or key_cache.stride(-1) != 1 or not rows.readable() or (out.numel() and out.stride(1) != 1):
        return None
    return MassCall(library(), rows, query, key_cache, layout, scale, head_reduce, out, accumulate)


def key_norms(key_cache: torch.Tensor, layout: KeyLayout | None, pages: torch.Tensor, out: torch.Tensor) -> bool:
    """See `memdecay_kernels.key_norms`; False where the strides are none that the library reads."""
    if key_cache.stride(-1) != 1:
        return False
    if layout is None:
        layout = plain_layout(key_cache.shape[2], key_cache.shape[3], key_cache.stride(2))
    pages = pages.contiguous()
    library().call(
        "key_norms",
        NormArgs(
            keys=key_cache.data_ptr(),
            key_page_stride=key_cache.stride(0),
            key_head_stride=key_cache.stride(1),
            offsets=layout.offsets32.data_ptr(),
            pages=pages.data_ptr(),
            out=out.data_ptr(),
            count=pages.numel(),
            num_kv_heads=key_cache.shape[1],
            head_dim=layout.head_dim,
            page_size=layout.page_size_tokens,
            key_dtype=DTYPES[key_cache.dtype],
            tile_kind=layout.tile_kind,
        ),
    )
    return True


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
    host.observe_tokens(
        library(),
        _arrays(columns),
        token_index.contiguous().numpy(),
        mass.contiguous().numpy(),
        None if newest_mass is None else newest_mass.contiguous().numpy(),
        rule,
        represented_queries,
        clock_ticks,
    )


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
    arrays = {
        name: getattr(terms, name).numpy() for name in ("base_priority", "decay_rate_per_tick", "half_life_ticks")
    }
    host.score_pages(
        library(),
        _arrays(columns),
        pages.contiguous().numpy(),
        evictable.contiguous().numpy(),
        ScoreTerms(**{**vars(terms), **arrays}),
        page_size_tokens,
        processed_tokens,
        clock_ticks,
        out.numpy(),
    )


def select_pages(page_scores: torch.Tensor, evictable: torch.Tensor, out: torch.Tensor) -> None:
    """See `memdecay_kernels.select_pages`."""
    host.select_pages(library(), page_scores.contiguous().numpy(), evictable.contiguous().numpy(), out.numpy())


def compact_block_table(
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    page_size_tokens: int,
    null_page: int,
    out_table: torch.Tensor,
    kept_tokens: torch.Tensor,
    kept_pages: torch.Tensor,
) -> bool:
    """See `memdecay_kernels.compact_block_table`; writes the last three, contiguous; False: strides it cannot read."""
    if block_table.dtype is not torch.int32 or seq_lens.dtype is not torch.int32:
        return False
    if (block_table.numel() and block_table.stride(1) != 1) or (seq_lens.numel() > 1 and seq_lens.stride(0) != 1):
        return False
    library().call(
        "compact",
        CompactArgs(
            block_table=block_table.data_ptr(),
            table_stride=block_table.stride(0),
            seq_lens=seq_lens.data_ptr(),
            out_table=out_table.data_ptr(),
            out_stride=out_table.stride(0),
            kept_tokens=kept_tokens.data_ptr(),
            kept_pages=kept_pages.data_ptr(),
            rows=block_table.shape[0],
            columns=block_table.shape[1],
            page_size=page_size_tokens,
            null_page=null_page,
        ),
    )
    return True


def copy_pages(
    source: torch.Tensor, source_pages: torch.Tensor, target: torch.Tensor, target_pages: torch.Tensor
) -> bool:
    """See `memdecay_kernels.copy_pages`; False where a page is not contiguous."""
    if not source_pages.numel():
        return True
    if not (source[0].is_contiguous() and target[0].is_contiguous()):
        return False
    width = source.element_size()
    from_pages, to_pages = source_pages.contiguous(), target_pages.contiguous()
    library().call(
        "copy",
        CopyArgs(
            source=source.data_ptr(),
            target=target.data_ptr(),
            source_pages=from_pages.data_ptr(),
            target_pages=to_pages.data_ptr(),
            count=from_pages.numel(),
            source_stride_bytes=source.stride(0) * width,
            target_stride_bytes=target.stride(0) * width,
            page_bytes=source[0].numel() * width,
            threads=torch.get_num_threads(),
        ),
    )
    return True


def _arrays(columns: TokenColumns[torch.Tensor]) -> TokenColumns[Any]:
    return TokenColumns(*(column.numpy() for column in columns))
