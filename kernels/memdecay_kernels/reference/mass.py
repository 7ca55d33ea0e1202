"""attention_mass, defined: gather the keys, one softmax a query and head, average."""

from __future__ import annotations

import torch

from memdecay_kernels.layouts import KeyLayout


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
) -> None:
    """See `memdecay_kernels.attention_mass`, which checks the arguments; writes ``out``."""
    if not accumulate:
        out.zero_()
    rows = zip(context_lens.tolist(), query_ends.tolist(), windows.tolist(), strict=True)
    for row, (context, end, window) in enumerate(rows):
        if not context or not window:
            continue
        keys = _keys(key_cache, layout, block_table[row])[:, :context]
        out[row, :context] += _mass_of_one(query[end - window : end], keys, scale, head_reduce)


def _keys(key_cache: torch.Tensor, layout: KeyLayout | None, page_ids: torch.Tensor) -> torch.Tensor:
    """The keys of a row's pages in token order, float32 ``[num_kv_heads, pages * page_size, head_dim]``."""
    cells = key_cache.index_select(0, page_ids.to(key_cache.device).long())
    if layout is not None:
        cells = layout.unpack(cells)
    return cells.transpose(0, 1).flatten(1, 2).float()


def _mass_of_one(query: torch.Tensor, keys: torch.Tensor, scale: float, head_reduce: str) -> torch.Tensor:
    """One request: queries ``[W, num_heads, head_dim]``, keys ``[num_kv_heads, L, head_dim]``; float32 ``[L]``."""
    window, num_heads, head_dim = query.shape
    num_kv_heads, context, _ = keys.shape
    group = num_heads // num_kv_heads
    grouped = query.float().view(window, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    logits = torch.matmul(grouped.flatten(1, 2) * scale, keys.transpose(1, 2))
    logits = logits.view(num_kv_heads, group, window, context)
    if window > 1:  # among the newest tokens each query sees those up to itself
        hidden = torch.ones(window, window, dtype=torch.bool, device=query.device).triu(1)
        logits[..., context - window :].masked_fill_(hidden, float("-inf"))
    weights = logits.softmax(-1).mean(2).flatten(0, 1)  # [num_heads, L]
    return weights.mean(0) if head_reduce == "mean" else weights.amax(0)
