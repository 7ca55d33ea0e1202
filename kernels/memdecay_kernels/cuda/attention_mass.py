"""Attention mass on the GPU: all requests and all sampled layers of a step in three launches.

See ``src/attention_mass.cuh`` for how the work is cut. The result of one request is the same to the last bit alone
and in any batch, for the same number of layers.

Not run on a GPU: tested by emulation of the same sources on the CPU.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import torch

from memdecay_kernels.cuda._checks import INT32_MAX, aligned, check_tensor, refuse
from memdecay_kernels.cuda.launcher import Grid, Launcher

MAX_LAYERS = 64
"""Layers of one call."""
MAX_WINDOW = {"mean": 512, "max": 16}
"""Newest queries of a request that can be measured, by ``head_reduce``."""
_TILE_ROWS, _TILE_TOKENS, _WARPS, _WARP_LANES, _SPLIT_TOKENS = 16, 32, 4, 32, 256
_STATISTICS_FLOATS = 2
_SUFFIX = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
_WIDE_BYTES = 16


class _Parameters(ctypes.Structure):
    """``MassParameters`` of the kernels."""

    _fields_ = (
        ("query", ctypes.c_void_p * MAX_LAYERS), ("keys", ctypes.c_void_p * MAX_LAYERS),
        *((name, ctypes.c_void_p) for name in (
            "block_table", "context_lens", "query_ends", "windows", "statistics", "totals", "out")),
        *((name, ctypes.c_int64) for name in (
            "query_token_stride", "query_head_stride", "key_block_stride", "key_token_stride", "key_head_stride",
            "table_stride", "out_stride")),
        *((name, ctypes.c_int32) for name in (
            "layers", "kv_heads", "group", "head_dim", "page_size", "table_columns", "max_context", "max_window",
            "splits", "row_tiles", "layer_warps", "accumulate", "reduce_max")),
        ("scale_log2", ctypes.c_float), ("weight", ctypes.c_float),
    )  # fmt: skip


def attention_mass(
    queries: Sequence[torch.Tensor],
    key_caches: Sequence[torch.Tensor],
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    query_ends: torch.Tensor,
    windows: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    max_window: int,
    launcher: Launcher,
    head_reduce: str = "mean",
    layer_weight: float = 1.0,
    accumulate: bool = False,
) -> None:
    """Write ``layer_weight`` times the sum of the layers' masses; nothing is read back, and no length is checked.

    Query ``w`` of a request's ``W`` newest sees the first ``n - (W - 1 - w)`` of its ``n`` retained tokens.

    Args:
        queries: of each layer ``[T, num_heads, head_dim]``, bfloat16, float16 or float32, after rotary embedding; token
            and head strides are free and the same in every layer.
        key_caches: of each layer ``[num_pages, page_size, num_kv_heads, head_dim]`` of the same dtype: a view with any
            strides but the last (1), the same in every layer.
        block_table: int32 ``[R, P]``: page ids of the retained pages in order; entries behind a row's end are not read.
        context_lens: int32 ``[R]``: retained tokens, the new ones included; 0 for an empty request.
        query_ends: int32 ``[R]``: one past the request's last row in ``T``.
        windows: int32 ``[R]``: newest queries to measure; a number above ``max_window`` counts as that.
        out: float32 ``[R, max_context]``, written in place; columns behind a request's length become 0, or stay as
            they are with ``accumulate``.
        scale: the softmax scale.
        max_window: upper bound of ``windows``, itself within `MAX_WINDOW`; the cost follows ``windows``, the scratch
            memory this.
        launcher: the device.
        head_reduce: mean or maximum over query heads, in each layer.
        layer_weight: weight of each layer, for instance 1 / layers.
        accumulate: add to ``out``.

    Raises:
        CudaArgumentError: tensors that do not fit together.
    """
    query, keys = queries[0], key_caches[0]
    num_requests, max_context = _check(queries, key_caches, block_table, (context_lens, query_ends, windows), out)
    num_heads, head_dim = query.shape[1:]
    page_size, kv_heads = keys.shape[1:3]
    if head_reduce not in MAX_WINDOW:
        raise refuse("head_reduce", f"{head_reduce!r} is neither 'mean' nor 'max'", "Choose one of them.")
    if not 1 <= max_window <= MAX_WINDOW[head_reduce]:
        where = f"max_window with '{head_reduce}'"
        raise refuse(where, f"{max_window} is outside 1..{MAX_WINDOW[head_reduce]}", "Measure fewer queries at once.")
    if not (num_requests and max_context and keys.shape[0]):
        return
    group, layers = num_heads // kv_heads, len(queries)
    row_tiles = group if head_reduce == "max" else math.ceil(group * max_window / _TILE_ROWS)
    splits = math.ceil(max_context / _SPLIT_TOKENS)
    layer_warps = next(warps for warps in (4, 2, 1) if layers >= warps)
    row_statistics = num_requests * layers * kv_heads * row_tiles * _TILE_ROWS * _STATISTICS_FLOATS
    statistics = torch.empty(row_statistics * splits, dtype=torch.float32, device=out.device)
    totals = torch.empty(row_statistics, dtype=torch.float32, device=out.device)
    parameters = _Parameters(
        block_table=block_table.data_ptr(), context_lens=context_lens.data_ptr(), query_ends=query_ends.data_ptr(),
        windows=windows.data_ptr(), statistics=statistics.data_ptr(), totals=totals.data_ptr(), out=out.data_ptr(),
        query_token_stride=query.stride(0), query_head_stride=query.stride(1), key_block_stride=keys.stride(0),
        key_token_stride=keys.stride(1), key_head_stride=keys.stride(2), table_stride=block_table.stride(0),
        out_stride=out.stride(0), layers=layers, kv_heads=kv_heads, group=group, head_dim=head_dim,
        page_size=page_size, table_columns=block_table.shape[1], max_context=max_context, max_window=max_window,
        splits=splits, row_tiles=row_tiles, layer_warps=layer_warps, accumulate=accumulate,
        reduce_max=head_reduce == "max", scale_log2=scale * math.log2(math.e), weight=layer_weight,
    )  # fmt: skip
    for layer, (layer_query, layer_keys) in enumerate(zip(queries, key_caches, strict=True)):
        parameters.query[layer] = layer_query.data_ptr()
        parameters.keys[layer] = layer_keys.data_ptr()
    suffix = _SUFFIX[query.dtype]
    if query.dtype is not torch.float32 and not _wide_loads_fit(queries, key_caches):
        suffix += "_strided"
    tensors = (*queries, *key_caches, block_table, context_lens, query_ends, windows, statistics, totals, out)
    block_tokens = _TILE_TOKENS * _WARPS // layer_warps
    tiles, threads = layers * kv_heads * row_tiles, _WARPS * _WARP_LANES
    launcher.launch(
        f"mass_statistics_{suffix}", Grid(splits, layers * kv_heads, num_requests), threads, parameters, tensors
    )
    launcher.launch("mass_totals_of_rows", Grid(tiles, num_requests), _WARP_LANES, parameters, tensors)
    blocks = Grid(math.ceil(max_context / block_tokens), num_requests)
    launcher.launch(f"mass_of_tokens_{suffix}", blocks, threads, parameters, tensors)


def _wide_loads_fit(queries: Sequence[torch.Tensor], key_caches: Sequence[torch.Tensor]) -> bool:
    strides = (*queries[0].stride()[:2], *key_caches[0].stride()[:3], queries[0].shape[2])
    return aligned((*queries, *key_caches), strides, _WIDE_BYTES)


def _check(
    queries: Sequence[torch.Tensor],
    key_caches: Sequence[torch.Tensor],
    block_table: torch.Tensor,
    row_tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    out: torch.Tensor,
) -> tuple[int, int]:
    if not 1 <= len(queries) == len(key_caches) <= MAX_LAYERS:
        raise refuse(
            "layers", f"{len(queries)} queries for {len(key_caches)} key caches", f"Pass 1 to {MAX_LAYERS} of both."
        )
    query, keys = queries[0], key_caches[0]
    for layer, (layer_query, layer_keys) in enumerate(zip(queries, key_caches, strict=True)):
        check_tensor(layer_query, f"query of layer {layer}", tuple(_SUFFIX), (*query.shape[:2], query.shape[-1]))
        check_tensor(layer_keys, f"key cache of layer {layer}", query.dtype, (*keys.shape[:3], query.shape[-1]))
        if layer_query.stride() != query.stride() or layer_keys.stride() != keys.stride():
            raise refuse(f"layer {layer}", "its strides differ from those of the first", "Group layers by strides.")
    num_heads, kv_heads = query.shape[1], keys.shape[2]
    if not kv_heads or num_heads % kv_heads:
        raise refuse("query", f"{num_heads} heads do not fit {kv_heads} key heads", "Check the arguments.")
    if (query.shape[0] - 1) * query.stride(0) + num_heads * query.stride(1) > INT32_MAX:
        raise refuse("query", f"it spans more than {INT32_MAX} elements", "Pass only the rows of this step.")
    num_requests = block_table.shape[0]
    check_tensor(block_table, "block_table", torch.int32, (None, None))
    check_tensor(out, "out", torch.float32, (num_requests, None))
    for name, tensor in zip(("context_lens", "query_ends", "windows"), row_tensors, strict=True):
        check_tensor(tensor, name, torch.int32, (num_requests,))
    return num_requests, out.shape[1]
