"""attention_mass: how much attention each retained token receives from the newest queries.

The quantity behind every attention-driven eviction policy (H2O, arXiv 2306.14048; SnapKV,
arXiv 2404.14469): the softmax weights of the last queries over the tokens still in the cache.
"""

from __future__ import annotations

import torch

from memdecay_kernels.layouts import KeyLayout


def attention_mass(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    layout: KeyLayout,
    page_ids: torch.Tensor,
    context_tokens: int,
    scale: float,
    *,
    head_reduce: str = "mean",
) -> torch.Tensor:
    """Attention mass per retained token, averaged over the queries; float32 throughout.

    Query ``w`` of ``W`` is the one at position ``context_tokens - W + w`` among the retained tokens, and
    sees no token after itself.

    Args:
        query: ``[W, num_heads, head_dim]``, any float type; the newest queries after rotary embedding.
        key_cache: ``[num_pages, num_kv_heads, page_size * head_dim]``, any float type: the packed keys
            of the pool (a view; never written).
        layout: how a page's keys are packed.
        page_ids: int64 ``[P]``: the request's pages in order, without the evicted ones.
        context_tokens: retained tokens, the ``W`` new ones included; at most ``P * page_size``.
        scale: the softmax scale.
        head_reduce: "mean" or "max" over the query heads.

    Returns:
        float32 ``[context_tokens]``; with "mean" it sums to 1.

    Raises:
        ValueError: shapes that do not fit together, or an unknown ``head_reduce``.
    """
    window, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[1]
    if num_heads % num_kv_heads or head_dim != layout.head_dim:
        raise ValueError(
            f"query heads {num_heads} x {head_dim} do not fit {num_kv_heads} key heads x {layout.head_dim}"
        )
    if not window <= context_tokens <= page_ids.numel() * layout.page_size_tokens:
        raise ValueError(
            f"context of {context_tokens} tokens does not fit {page_ids.numel()} pages of "
            f"{layout.page_size_tokens} with {window} queries"
        )
    group = num_heads // num_kv_heads
    cells = layout.unpack(key_cache.index_select(0, page_ids))  # [P, Hkv, page, D]
    keys = cells.transpose(0, 1).flatten(1, 2)[:, :context_tokens].float()  # [Hkv, L, D]
    grouped = query.float().view(window, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    logits = torch.matmul(grouped.flatten(1, 2) * scale, keys.transpose(1, 2))
    logits = logits.view(num_kv_heads, group, window, context_tokens)
    if window > 1:  # among the newest tokens each query sees those up to itself
        hidden = torch.ones(window, window, dtype=torch.bool, device=query.device).triu(1)
        logits[..., context_tokens - window :].masked_fill_(hidden, float("-inf"))
    weights = logits.softmax(-1).mean(2).flatten(0, 1)  # [num_heads, L]
    if head_reduce == "mean":
        return weights.mean(0)
    if head_reduce == "max":
        return weights.amax(0)
    raise ValueError(f"head_reduce {head_reduce!r} is neither 'mean' nor 'max'")
