"""How vLLM's CPU attention packs keys: found by writing through its own op at start-up."""

from __future__ import annotations

import functools

import torch
from vllm import _custom_ops as ops

from memdecay_agents.errors import UnsupportedError
from memdecay_kernels import KeyLayout, recover_key_layout


@functools.lru_cache(maxsize=16)
def cpu_key_layout(isa: str, page_size_tokens: int, head_dim: int, dtype: torch.dtype) -> KeyLayout:
    """The key layout of one instruction set, page size, head size and dtype.

    Args:
        isa: vLLM's name of the attention kernel's instruction set ("amx", "vec", "vec16", ...).
        page_size_tokens: tokens in a page.
        head_dim: elements of one key.
        dtype: the cache's dtype.

    Raises:
        UnsupportedError: vLLM writes keys in a way that is no permutation, so that they cannot be read.
    """

    def write(keys: torch.Tensor) -> torch.Tensor:
        pages = torch.zeros(2, 1, page_size_tokens * 2, head_dim, dtype=dtype)
        key_cache, value_cache = pages.chunk(2, dim=2)
        key = keys.to(dtype).view(page_size_tokens, 1, head_dim).contiguous()
        ops.cpu_attn_reshape_and_cache(
            key,
            torch.zeros_like(key),
            key_cache,
            value_cache,
            torch.arange(page_size_tokens) + page_size_tokens,
            isa,
            k_scale=1.0,
            v_scale=1.0,
            kv_cache_dtype="auto",
        )
        return key_cache[1, 0].reshape(-1)

    try:
        return recover_key_layout(write, page_size_tokens, head_dim, isa)
    except ValueError as error:
        raise UnsupportedError(
            where=f"vLLM's CPU attention ({isa}, page {page_size_tokens}, head size {head_dim}, {dtype})",
            rule=str(error),
            remedy="This vLLM stores keys in a way that is not known here: use the supported version.",
        ) from error
