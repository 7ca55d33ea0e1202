"""attention_mass: how much attention each retained token receives from the newest queries.

The quantity behind every attention-driven eviction policy (H2O, arXiv 2306.14048; SnapKV,
arXiv 2404.14469): the softmax weights of the last queries over the tokens still in the cache.
"""

from __future__ import annotations

import torch

from memdecay_kernels.implementations import native_for
from memdecay_kernels.layouts import KeyLayout
from memdecay_kernels.reference import mass as reference

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def attention_mass(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    layout: KeyLayout | None,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    *,
    query_ends: torch.Tensor | None = None,
    windows: torch.Tensor | None = None,
    head_reduce: str = "mean",
    out: torch.Tensor | None = None,
    accumulate: bool = False,
) -> torch.Tensor:
    """Attention mass per retained token of R requests, averaged over each one's newest queries; float32 throughout.

    Query ``w`` of a request's ``W`` is the one at position ``context - W + w`` among its retained tokens, and sees
    no token after itself.

    Args:
        query: ``[T, num_heads, head_dim]``, bfloat16, float16 or float32, after rotary embedding; the last axis
            contiguous, the others in any strides.
        key_cache: the pool's keys, bfloat16, float16 or float32, never written. With a ``layout``: packed cells
            ``[num_pages, num_kv_heads, page_size * head_dim]``; without: ``[num_pages, num_kv_heads, page_size,
            head_dim]``. The last axis contiguous, the others in any strides.
        layout: how a page's keys are packed; None: token after token.
        block_table: int32 ``[R, P]``: each request's pages in order, without the evicted ones.
        context_lens: int32 ``[R]``: retained tokens, the newest queries' own included; 0: nothing to do.
        scale: the softmax scale.
        query_ends: int32 ``[R]``: one past each request's last query in ``query``. By default the one request has
            all queries, or each of R = T requests has one.
        windows: int32 ``[R]``: each request's newest queries W to measure; 0: nothing to do.
        head_reduce: "mean" or "max" over the query heads (of the mean over W).
        out: float32 ``[R, M]``, M at least the longest context; by default a new tensor.
        accumulate: add to ``out``, as for the sum over layers.

    Returns:
        ``out``. With "mean" a row sums to 1; behind a row's context it is 0 (untouched when accumulating).

    Raises:
        ValueError: shapes or dtypes that do not fit together, or an unknown ``head_reduce``.
    """
    requests = block_table.shape[0]
    if query_ends is None or windows is None:
        query_ends, windows = _default_queries(query, requests)
    page_size = layout.page_size_tokens if layout is not None else key_cache.shape[2]
    if out is None:
        longest = int(context_lens.max()) if requests else 0
        out, accumulate = query.new_zeros(requests, longest, dtype=torch.float32), False
    check_shapes(query, key_cache, layout, head_reduce, out)
    if query.device.type == "cpu":
        check_rows(
            block_table, context_lens, query_ends, windows,
            page_size_tokens=page_size, query_tokens=query.shape[0], columns=out.shape[1],
        )  # fmt: skip
    native = native_for("attention_mass", query.device)
    if native is None or not native.attention_mass(
        query, key_cache, layout, block_table, context_lens, query_ends, windows, scale, head_reduce, out, accumulate
    ):
        reference.attention_mass(
            query, key_cache, layout, block_table, context_lens, query_ends, windows, scale, head_reduce, out,
            accumulate,
        )  # fmt: skip
    return out


def _default_queries(query: torch.Tensor, requests: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = query.shape[0]
    if requests == 1:
        ends = windows = torch.tensor([tokens], dtype=torch.int32, device=query.device)
    elif requests == tokens:
        ends = torch.arange(1, tokens + 1, dtype=torch.int32, device=query.device)
        windows = torch.ones(tokens, dtype=torch.int32, device=query.device)
    else:
        raise ValueError(f"{tokens} queries for {requests} requests: say whose they are by query_ends and windows")
    return ends, windows


def check_shapes(
    query: torch.Tensor, key_cache: torch.Tensor, layout: KeyLayout | None, head_reduce: str, out: torch.Tensor
) -> None:
    """Check that queries, keys and masses fit together; see `attention_mass`.

    Raises:
        ValueError: what does not.
    """
    _, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[1]
    key_dim = layout.head_dim if layout is not None else key_cache.shape[3]
    if num_heads % num_kv_heads or head_dim != key_dim:
        raise ValueError(f"query heads {num_heads} x {head_dim} do not fit {num_kv_heads} key heads x {key_dim}")
    if layout is not None and key_cache.shape[2] != layout.offsets.numel():
        raise ValueError(f"cells of {key_cache.shape[2]} elements do not fit layout {layout.name!r}")
    if query.dtype not in _FLOATS or key_cache.dtype not in _FLOATS or out.dtype is not torch.float32:
        raise ValueError(f"queries {query.dtype}, keys {key_cache.dtype}, out {out.dtype}: floats of 16 or 32 bits")
    if head_reduce not in ("mean", "max"):
        raise ValueError(f"head_reduce {head_reduce!r} is neither 'mean' nor 'max'")


def check_rows(
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    query_ends: torch.Tensor,
    windows: torch.Tensor,
    *,
    page_size_tokens: int,
    query_tokens: int,
    columns: int,
) -> None:
    """Check rows on the host; on a device that would be a wait, and the caller answers for them.

    Args:
        block_table: int32 ``[R, P]``.
        context_lens: int32 ``[R]``.
        query_ends: int32 ``[R]``.
        windows: int32 ``[R]``.
        page_size_tokens: tokens in a page.
        query_tokens: queries that there are.
        columns: masses that there is room for in a row.

    Raises:
        ValueError: which row does not fit, and why.
    """
    rows = zip(context_lens.tolist(), query_ends.tolist(), windows.tolist(), strict=True)
    for row, (context, end, window) in enumerate(rows):
        if not context or not window:
            continue
        if not 0 < window <= context <= block_table.shape[1] * page_size_tokens or context > columns:
            raise ValueError(
                f"row {row}: a context of {context} tokens does not fit {block_table.shape[1]} pages of "
                f"{page_size_tokens} with {window} queries and room for {columns} masses"
            )
        if not window <= end <= query_tokens:
            raise ValueError(f"row {row}: {window} queries up to {end} do not fit {query_tokens} queries")
