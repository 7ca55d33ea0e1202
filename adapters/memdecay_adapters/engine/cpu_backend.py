"""vLLM's CPU attention with evicted pages left out and, when asked, attention mass measured.

The stock builder and implementation do all the attention work. Added are two things: block-table rows
lose their null entries (on copies: the runner's tensors also feed the next step and the slot mapping), and
after a layer's attention the mass of the newest queries is summed for the requests being observed.
"""

from __future__ import annotations

import dataclasses
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

from memdecay_adapters.engine.cpu_key_layout import cpu_key_layout
from memdecay_adapters.engine.integrity import check_worker_rows
from memdecay_adapters.engine.observer import ObservedRow, StepObserver
from memdecay_kernels import CompactTable, attention_mass, compact_block_table

PAGE_MULTIPLE_TOKENS = 16


@dataclass
class MemDecayCPUMetadata(CPUAttentionMetadata):
    """The stock metadata and the rows that this step observes."""

    observed_rows: tuple[ObservedRow, ...] = ()
    observed_layers: frozenset[str] = frozenset()


class MemDecayCPUMetadataBuilder(CPUAttentionMetadataBuilder):
    """Builds stock metadata over the retained pages only."""

    observer: StepObserver | None = None
    """Bound by the worker; without it this builder is the stock one."""
    observed_layers: frozenset[str] = frozenset()

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> CPUAttentionMetadata:
        """See the base class; rows with evicted pages are compacted first."""
        if self.observer is None:
            return super().build(common_prefix_len, common_attn_metadata, fast_build)
        common = common_attn_metadata
        requests = common.num_reqs
        table = compact_block_table(common.block_table_tensor[:requests], common.seq_lens[:requests], self.block_size)
        if self.observer.directions.expected_rows is not None:
            self._check_rows(common, self.observer.directions.expected_rows)
        if not torch.equal(table.kept_tokens, common.seq_lens[:requests]):
            common = dataclasses.replace(
                common,
                block_table_tensor=table.block_table,
                seq_lens=table.kept_tokens,
                max_seq_len=int(table.kept_tokens.max()),
            )
        stock = super().build(common_prefix_len, common, fast_build)
        rows = self._observe(common, table)
        return MemDecayCPUMetadata(**vars(stock), observed_rows=rows, observed_layers=self.observed_layers)

    def _observe(self, common: CommonAttentionMetadata, table: CompactTable) -> tuple[ObservedRow, ...]:
        assert self.observer is not None
        wanted = self.observer.directions.observe
        if not wanted:
            return ()
        rows = []
        query_start = common.query_start_loc.tolist()
        request_ids = self.observer.request_ids()
        for index in range(common.num_reqs):
            request_id = request_ids[index]
            if request_id not in wanted:
                continue
            kept_tokens = int(table.kept_tokens[index])
            kept_pages = torch.nonzero(table.kept_pages[index]).flatten()
            tokens = kept_pages[:, None] * self.block_size + torch.arange(self.block_size)[None, :]
            row = ObservedRow(
                request_id=request_id,
                pages=table.block_table[index, : kept_pages.numel()].long(),
                token_index=tokens.flatten()[:kept_tokens],
                query_end=query_start[index + 1],
                queries=min(wanted[request_id], query_start[index + 1] - query_start[index]),
            )
            self.observer.watch(row)
            rows.append(row)
        return tuple(rows)

    def _check_rows(self, common: CommonAttentionMetadata, expected: dict[str, list[int]]) -> None:
        assert self.observer is not None
        actual = {}
        request_ids = self.observer.request_ids()
        for index in range(common.num_reqs):
            pages = -(-int(common.seq_lens[index]) // self.block_size)
            actual[request_ids[index]] = common.block_table_tensor[index, :pages].tolist()
        check_worker_rows(expected, actual)


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
        if (
            isinstance(attn_metadata, MemDecayCPUMetadata)
            and attn_metadata.observed_rows
            and layer.layer_name in attn_metadata.observed_layers
        ):
            self._add_mass(layer, query, kv_cache, attn_metadata.observed_rows)
        return result

    def _add_mass(
        self, layer: AttentionLayer, query: torch.Tensor, kv_cache: torch.Tensor, rows: tuple[ObservedRow, ...]
    ) -> None:
        pages, heads, page_size, both = kv_cache.shape
        head_dim = both // 2
        layout = cpu_key_layout(layer.isa, page_size, head_dim, kv_cache.dtype)
        keys = kv_cache.view(pages, heads, page_size * both)[:, :, : page_size * head_dim]
        for row in rows:
            mass = attention_mass(
                query[row.query_end - row.queries : row.query_end],
                keys,
                layout,
                row.pages,
                row.token_index.numel(),
                self.scale,
            )
            row.mass = mass if row.mass is None else row.mass + mass
            row.layers += 1


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
