"""How vLLM's CPU attention packs keys: found by writing through its own op at start-up."""

from __future__ import annotations

import functools

import torch
from vllm import _custom_ops as ops

from memdecay_agents.errors import UnsupportedError
from memdecay_kernels import KeyLayout, attention_mass, implementation_name, recover_key_layout
from memdecay_kernels.reference.mass import attention_mass as mass_definition


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


def probe_keys(isa: str, page_size_tokens: int, head_dim: int, dtype: torch.dtype) -> None:
    """Try at start-up what every measurement relies on: vLLM's keys can be read, and are read right.

    Keys written by vLLM's own op are measured by the implementation in use and by the definition.

    Args:
        isa: vLLM's name of the attention kernel's instruction set.
        page_size_tokens: tokens in a page.
        head_dim: elements of one key.
        dtype: the cache's dtype.

    Raises:
        UnsupportedError: the layout is unknown, or the two disagree.
    """
    layout = cpu_key_layout(isa, page_size_tokens, head_dim, dtype)
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(2, 1, page_size_tokens, head_dim, generator=generator).to(dtype)
    query = torch.randn(2, 2, head_dim, generator=generator).to(dtype)
    table, length = torch.tensor([[1, 0]], dtype=torch.int32), torch.tensor([2 * page_size_tokens - 1]).int()
    mass = attention_mass(query, layout.pack(keys), layout, table, length, head_dim**-0.5)
    expected, windows = torch.zeros_like(mass), torch.tensor([2], dtype=torch.int32)
    mass_definition(
        query, layout.pack(keys), layout, table, length, windows, windows, head_dim**-0.5, "mean", expected, False
    )
    if not torch.allclose(mass, expected, rtol=1e-3, atol=1e-6):
        raise UnsupportedError(
            where=f"attention mass ({implementation_name()}, {isa}, {dtype})",
            rule="it is not what the definition gives on this processor",
            remedy="Set MEMDECAY_KERNELS=reference, and please report it with `memdecay doctor`.",
        )
