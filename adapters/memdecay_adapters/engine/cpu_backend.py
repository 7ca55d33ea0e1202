"""vLLM's CPU attention with evicted pages left out and, when asked, attention mass measured.

The stock builder and implementation do all the attention work. Added are two things: block-table rows
lose their null entries (on copies: the runner's tensors also feed the next step and the slot mapping), and
after a layer's attention the mass of the newest queries is summed for the requests being observed.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import torch
from vllm.v1.attention.backend import AttentionLayer, CommonAttentionMetadata, MultipleOf
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from memdecay_adapters.engine.attention_rows import check_step_rows, queries_to_keep, rows_to_observe
from memdecay_adapters.engine.cpu_key_layout import cpu_key_layout, packed_keys
from memdecay_adapters.engine.kept_rows import KeptRows
from memdecay_adapters.engine.observer import ObservedRows, StepObserver
from memdecay_adapters.engine.tier.queries import QueryTails
from memdecay_kernels import KeyLayout

PAGE_MULTIPLE_TOKENS = 16


@dataclass
class MemDecayCPUMetadata(CPUAttentionMetadata):
    """The stock metadata and the rows that this step observes."""

    observed_rows: ObservedRows | None = None
    observed_layers: frozenset[str] = frozenset()
    queries: QueryTails | None = None
    """Keeps queries for recall, where this step has some to keep."""


class MemDecayCPUMetadataBuilder(CPUAttentionMetadataBuilder):
    """Builds stock metadata over the retained pages only."""

    observer: StepObserver | None = None
    """Bound by the worker; without it this builder is the stock one."""
    observed_layers: frozenset[str] = frozenset()
    _kept_rows: KeptRows | None = None

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> CPUAttentionMetadata:
        """See the base class; rows with evicted pages are compacted first."""
        if self.observer is None:
            return super().build(common_prefix_len, common_attn_metadata, fast_build)
        common, requests = common_attn_metadata, common_attn_metadata.num_reqs
        block_table, seq_lens = common.block_table_tensor[:requests], common.seq_lens[:requests]
        if self._kept_rows is None:
            self._kept_rows = KeptRows(self.block_size)
        table = self._kept_rows.of(block_table, seq_lens)
        check_step_rows(self.observer, block_table, seq_lens, self.block_size)
        if self._kept_rows.has_holes:
            common = dataclasses.replace(
                common,
                block_table_tensor=table.block_table,
                seq_lens=table.kept_tokens,
                max_seq_len=int(table.kept_tokens.numpy().max()),
            )
        stock = super().build(common_prefix_len, common, fast_build)
        query_start = common.query_start_loc.tolist() if self.observer.directions.observe else []
        rows = rows_to_observe(self.observer, table, query_start, self.block_size)
        queries = queries_to_keep(self.observer, common.query_start_loc.tolist)
        if rows is None and queries is None:
            return stock
        return MemDecayCPUMetadata(
            **vars(stock), observed_rows=rows, observed_layers=self.observed_layers, queries=queries
        )


class MemDecayCPUImpl(CPUAttentionBackendImpl):
    """Stock attention, then the mass of the newest queries where it is wanted."""

    def forward(
        self,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: CPUAttentionMetadata | None,
        output: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        """See the base class."""
        result = super().forward(layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs)
        if not isinstance(attn_metadata, MemDecayCPUMetadata):
            return result
        if attn_metadata.queries is not None:
            attn_metadata.queries.take(layer.layer_name, query)
        if attn_metadata.observed_rows is not None and layer.layer_name in attn_metadata.observed_layers:
            started = time.perf_counter_ns()
            if self._keys is None or self._keys.data_ptr() != kv_cache.data_ptr():
                page_size, head_dim = kv_cache.shape[2], kv_cache.shape[3] // 2
                self._keys = packed_keys(kv_cache)
                self._layout = cpu_key_layout(layer.isa, page_size, head_dim, kv_cache.dtype)
            attn_metadata.observed_rows.plan.add_layer(query, self._keys, self._layout, self.scale)
            if (norms := attn_metadata.observed_rows.norms) is not None and self._layout is not None:
                norms.add_layer(self._keys, self._layout)
            attn_metadata.observed_rows.stopwatch.add_since(started)
        return result

    _keys: torch.Tensor | None = None
    """The layer's keys: ``[num_pages, num_kv_heads, page_size * head_dim]``, a view of its cache, which never moves."""
    _layout: KeyLayout | None = None


class MemDecayCPUBackend(CPUAttentionBackend):
    """The CPU backend over pages that are multiples of 16 tokens."""

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        """Kernel blocks equal manager blocks for every page size that is a multiple of 16.

        The stock backend asks for multiples of 32; smaller ones run in vLLM's own vec16 layout.
        """
        return [MultipleOf(PAGE_MULTIPLE_TOKENS)]

    @staticmethod
    def get_impl_cls() -> type[CPUAttentionBackendImpl]:
        """The implementation class."""
        return MemDecayCPUImpl

    @staticmethod
    def get_builder_cls() -> type[CPUAttentionMetadataBuilder]:
        """The metadata builder class."""
        return MemDecayCPUMetadataBuilder


def register_cpu_backend() -> None:
    """Make vLLM's CPU platform pick this backend; idempotent.

    The platform always selects ``CPU_ATTN`` and ignores CUSTOM, so the override is of that name. Engines
    without the memdecay worker in the same process keep stock behaviour: no observer is bound there.
    """
    path = f"{MemDecayCPUBackend.__module__}.{MemDecayCPUBackend.__qualname__}"
    register_backend(AttentionBackendEnum.CPU_ATTN, path)
