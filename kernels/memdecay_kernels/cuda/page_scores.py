"""Evidence, page scores and page selection on the GPU. Not run on a GPU: tested by emulation on the CPU."""

from __future__ import annotations

import ctypes
import math

import torch

from memdecay_kernels.cuda._checks import INT32_MAX, check_tensor, refuse
from memdecay_kernels.cuda.launcher import Grid, Launcher
from memdecay_kernels.terms import ObserveRule, ScoreTerms, TokenColumns

_OBSERVE_THREADS, _RANK_THREADS, _SCORE_THREADS, _SELECT_THREADS, _WARP_LANES = 128, 128, 128, 128, 32
_REFRESH = {"never": 0, "raw_mass": 1, "relative_mass": 2}
_PARTS = 3
_COLUMN_DTYPES = TokenColumns(
    region=torch.int8, flags=torch.int8, refreshed_at_ticks=torch.int64, ewma_mass=torch.float32,
    accumulated_relative=torch.float32, salience_sum=torch.float32, salience_weight=torch.float32,
    last_query_mass=torch.float32, key_norm=torch.float32,
)  # fmt: skip


class _ObserveParameters(ctypes.Structure):
    """``ObserveParameters`` of the kernel."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (
            "refreshed_at_ticks", "ewma_mass", "accumulated_relative", "salience_sum", "salience_weight",
            "last_query_mass", "token_index", "mass", "newest_mass")),
        *((name, ctypes.c_int64) for name in ("clock_ticks", "salience_min_age_tokens", "capacity_tokens")),
        *((name, ctypes.c_int32) for name in ("count", "salience_neighbours", "refresh")),
        *((name, ctypes.c_float) for name in ("keep", "queries", "salience_floor_relative", "refresh_threshold")),
    )  # fmt: skip


class _ScoreParameters(ctypes.Structure):
    """``ScoreParameters`` of the kernels."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (
            "region", "flags", "refreshed_at_ticks", "attention", "salience_sum", "salience_weight", "base_priority",
            "decay", "pages", "evictable", "ranks", "out")),
        *((name, ctypes.c_int64) for name in ("processed_tokens", "clock_ticks", "capacity_tokens")),
        *((name, ctypes.c_int32) for name in (
            "page_count", "page_size", "regions", "power_law", "attention_ranks", "salience_ranks")),
        *((name, ctypes.c_float) for name in ("superseded_factor", "attention_factor", "salience_factor")),
    )  # fmt: skip


class _SelectParameters(ctypes.Structure):
    """``SelectParameters`` of the kernel."""

    _fields_ = (
        ("scores", ctypes.c_void_p), ("evictable", ctypes.c_void_p), ("out", ctypes.c_void_p),
        ("page_count", ctypes.c_int32), ("count", ctypes.c_int32),
    )  # fmt: skip


def observe_tokens(
    columns: TokenColumns[torch.Tensor],
    token_index: torch.Tensor,
    mass: torch.Tensor,
    newest_mass: torch.Tensor | None,
    rule: ObserveRule,
    represented_queries: int,
    clock_ticks: int,
    *,
    launcher: Launcher,
) -> None:
    """See `memdecay_kernels.observe_tokens`; a token beyond the columns stops the kernel.

    Raises:
        CudaArgumentError: tensors that do not fit together.
    """
    capacity = _check_columns(columns)
    newest = mass if newest_mass is None else newest_mass
    check_tensor(token_index, "token_index", torch.int64, (None,))
    check_tensor(mass, "mass", torch.float32, token_index.shape)
    check_tensor(newest, "newest_mass", torch.float32, token_index.shape)
    parameters = _ObserveParameters(
        refreshed_at_ticks=columns.refreshed_at_ticks.data_ptr(), ewma_mass=columns.ewma_mass.data_ptr(),
        accumulated_relative=columns.accumulated_relative.data_ptr(), salience_sum=columns.salience_sum.data_ptr(),
        salience_weight=columns.salience_weight.data_ptr(), last_query_mass=columns.last_query_mass.data_ptr(),
        token_index=token_index.data_ptr(), mass=mass.data_ptr(), newest_mass=newest.data_ptr(),
        clock_ticks=clock_ticks, salience_min_age_tokens=rule.salience_min_age_tokens, capacity_tokens=capacity,
        count=token_index.shape[0], salience_neighbours=rule.salience_neighbours, refresh=_REFRESH[rule.refresh],
        keep=(1.0 - rule.ewma_factor) ** represented_queries, queries=represented_queries,
        salience_floor_relative=rule.salience_floor_relative, refresh_threshold=rule.refresh_threshold,
    )  # fmt: skip
    blocks = math.ceil(token_index.shape[0] / _OBSERVE_THREADS)
    launcher.launch("observe_tokens", Grid(blocks), _OBSERVE_THREADS, parameters, (*columns, token_index, mass, newest))


def score_pages(
    columns: TokenColumns[torch.Tensor],
    pages: torch.Tensor,
    evictable: torch.Tensor,
    terms: ScoreTerms[torch.Tensor],
    page_size_tokens: int,
    processed_tokens: int,
    clock_ticks: int,
    out: torch.Tensor,
    *,
    launcher: Launcher,
) -> None:
    """See `memdecay_kernels.score_pages`; a page beyond the columns stops the kernel.

    Raises:
        CudaArgumentError: tensors that do not fit together.
    """
    capacity = _check_columns(columns)
    check_tensor(pages, "pages", torch.int64, (None,))
    check_tensor(evictable, "evictable", torch.bool, pages.shape)
    check_tensor(out, "out", torch.float32, (_PARTS, pages.shape[0]))
    check_tensor(terms.base_priority, "base_priority", torch.float32, (None,))
    decay = terms.half_life_ticks if terms.decay_form == "power_law" else terms.decay_rate_per_tick
    check_tensor(decay, "decay", torch.float32, terms.base_priority.shape)
    if not out.is_contiguous():
        raise refuse("out", f"its strides are {out.stride()}", "Pass a contiguous tensor.")
    tokens = pages.shape[0] * page_size_tokens
    if tokens > INT32_MAX:
        raise refuse("pages", f"{tokens} tokens exceed {INT32_MAX}", "Score fewer pages at once.")
    ranked = (terms.attention_form == "rank", terms.salience_form == "rank")
    ranks = torch.empty((2, tokens) if any(ranked) else 0, dtype=torch.float32, device=out.device)
    attention = getattr(columns, terms.attention_column)
    parameters = _ScoreParameters(
        region=columns.region.data_ptr(), flags=columns.flags.data_ptr(),
        refreshed_at_ticks=columns.refreshed_at_ticks.data_ptr(), attention=attention.data_ptr(),
        salience_sum=columns.salience_sum.data_ptr(), salience_weight=columns.salience_weight.data_ptr(),
        base_priority=terms.base_priority.data_ptr(), decay=decay.data_ptr(), pages=pages.data_ptr(),
        evictable=evictable.data_ptr(), ranks=ranks.data_ptr(), out=out.data_ptr(),
        processed_tokens=processed_tokens, clock_ticks=clock_ticks, capacity_tokens=capacity,
        page_count=pages.shape[0], page_size=page_size_tokens, regions=terms.base_priority.shape[0],
        power_law=terms.decay_form == "power_law", attention_ranks=ranked[0], salience_ranks=ranked[1],
        superseded_factor=terms.superseded_factor, attention_factor=terms.attention_weight,
        salience_factor=terms.salience_weight,
    )  # fmt: skip
    tensors = (*columns, pages, evictable, terms.base_priority, decay, ranks, out)
    if any(ranked):
        rank_grid = Grid(math.ceil(tokens / _RANK_THREADS), sum(ranked))
        launcher.launch("rank_tokens", rank_grid, _RANK_THREADS, parameters, tensors)
    score_grid = Grid(math.ceil(pages.shape[0] / (_SCORE_THREADS // _WARP_LANES)))
    launcher.launch("score_parts", score_grid, _SCORE_THREADS, parameters, tensors)


def select_pages(page_scores: torch.Tensor, evictable: torch.Tensor, out: torch.Tensor, *, launcher: Launcher) -> None:
    """See `memdecay_kernels.select_pages`; a page whose score is NaN is not selected.

    Raises:
        CudaArgumentError: tensors that do not fit together.
    """
    check_tensor(page_scores, "page_scores", torch.float32, (None,))
    check_tensor(evictable, "evictable", torch.bool, page_scores.shape)
    check_tensor(out, "out", torch.int64, (None,))
    page_count, count = page_scores.shape[0], out.shape[0]
    parameters = _SelectParameters(
        scores=page_scores.data_ptr(), evictable=evictable.data_ptr(), out=out.data_ptr(), page_count=page_count,
        count=count,
    )  # fmt: skip
    grid = Grid(math.ceil(max(page_count, count) / _SELECT_THREADS) if count else 0)
    launcher.launch("select_pages", grid, _SELECT_THREADS, parameters, (page_scores, evictable, out))


def _check_columns(columns: TokenColumns[torch.Tensor]) -> int:
    """Check the dtypes and equal lengths; the capacity in tokens."""
    capacity = columns.region.shape[0]
    for name, column, dtype in zip(TokenColumns._fields, columns, _COLUMN_DTYPES, strict=True):
        check_tensor(column, f"column '{name}'", dtype, (capacity,))
    return int(capacity)
