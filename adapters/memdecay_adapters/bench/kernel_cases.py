"""Caches written by vLLM, its own attention over them, and our attention mass over the same keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from vllm import _custom_ops as ops

from memdecay_adapters.engine.cpu_key_layout import cpu_key_layout
from memdecay_kernels import MassPlan
from memdecay_kernels.native.mass_call import MassCall


@dataclass(frozen=True)
class Shape:
    """Shape of a model's attention; the default is SmolLM2-135M's."""

    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64
    dtype: torch.dtype = torch.bfloat16


class MassCase:
    """One request's context in several layers' caches, pages in random order.

    Args:
        isa: vLLM's name of the attention kernel ("amx", "vec", ...).
        context_tokens: tokens of the request.
        layers: caches of their own, gone through in turn, so that each is read from as far away as in a model.
        page_size_tokens: tokens in a page.
        shape: heads and dtype.
        seed: of keys, queries and page order.
    """

    def __init__(
        self,
        isa: str,
        context_tokens: int,
        layers: int,
        page_size_tokens: int = 32,
        shape: Shape | None = None,
        seed: int = 0,
    ) -> None:
        shape = shape or Shape()
        generator = torch.Generator().manual_seed(seed)
        self.pages = -(-context_tokens // page_size_tokens)
        self.shape, self.page = shape, page_size_tokens
        self.scale = shape.head_dim**-0.5
        self.layout = cpu_key_layout(isa, page_size_tokens, shape.head_dim, shape.dtype)
        self.caches = [self._written(isa, generator) for _ in range(layers)]
        size = page_size_tokens * shape.head_dim
        cells = (self.pages + 1, shape.num_kv_heads, 2 * size)
        self.keys = [cache.view(cells)[:, :, :size] for cache in self.caches]
        """``[num_pages, num_kv_heads, page_size * head_dim]`` of each layer, views of the caches."""
        self.query = torch.randn(1, shape.num_heads, shape.head_dim, generator=generator).to(shape.dtype)
        self._output = torch.zeros_like(self.query)
        self.block_table = (torch.randperm(self.pages, generator=generator) + 1).int()[None]
        self.lengths = torch.tensor([context_tokens], dtype=torch.int32)
        self._starts = torch.tensor([0, 1], dtype=torch.int32)
        self._metadata = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=1,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            seq_lens=self.lengths,
            dtype=shape.dtype,
            query_start_loc=self._starts,
            causal=True,
            sliding_window_size=-1,
            isa=isa,
            enable_kv_split=True,
        )
        one = torch.ones(1, dtype=torch.int32)
        self.plan = MassPlan(self.block_table, self.lengths, one, one, page_size_tokens=self.page, query_tokens=1)

    @property
    def key_bytes(self) -> int:
        """Bytes of one layer's keys."""
        return int(self.lengths[0]) * self.shape.num_kv_heads * self.shape.head_dim * self.shape.dtype.itemsize

    def attention(self, layer: int) -> None:
        """vLLM's own attention op for one decode query."""
        keys, values = self._halves(self.caches[layer])
        ops.cpu_attention_with_kv_cache(
            query=self.query,
            key_cache=keys,
            value_cache=values,
            output=self._output,
            query_start_loc=self._starts,
            seq_lens=self.lengths,
            scale=self.scale,
            causal=True,
            alibi_slopes=None,
            sliding_window=-1,
            block_table=self.block_table,
            softcap=0.0,
            scheduler_metadata=self._metadata,
            s_aux=None,
        )

    def mass(self, layer: int) -> None:
        """Attention mass of the same query, added to the plan's sum as the engine does it."""
        self.plan.add_layer(self.query, self.keys[layer], self.layout, self.scale)

    def read(self, layer: int) -> None:
        """Read the layer's keys and nothing else."""
        call = self.plan.native_call
        if not isinstance(call, MassCall):
            raise RuntimeError("reading is compared with the native library only")
        call.read_keys(self.keys[layer])

    def _halves(self, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (self.pages + 1, self.shape.num_kv_heads, self.page * 2, self.shape.head_dim)
        keys, values = cache.view(shape).chunk(2, dim=2)
        return keys, values

    def _written(self, isa: str, generator: torch.Generator) -> torch.Tensor:
        shape, tokens = self.shape, self.pages * self.page
        cache = torch.zeros(self.pages + 1, shape.num_kv_heads, self.page, 2 * shape.head_dim, dtype=shape.dtype)
        key = torch.randn(tokens, shape.num_kv_heads, shape.head_dim, generator=generator).to(shape.dtype)
        slots = torch.arange(tokens) + self.page
        ops.cpu_attn_reshape_and_cache(key, key.clone(), *self._halves(cache), slots, isa)
        return cache
