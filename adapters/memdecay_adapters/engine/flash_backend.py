"""vLLM's FlashAttention with evicted pages left out and, on eager steps when asked, attention mass measured.

Not run on a GPU: written from vLLM 0.32's sources.

The stock builder and implementation do all the attention work. Before the stock builder sees a step's rows
(and computes scheduler metadata from their lengths), null entries are dropped on the device, into buffers
that never move, because full CUDA graphs read the addresses they were captured with. The runner's own
tensors are not written: the next step and the slot mapping need them as they are. ``max_seq_len`` stays the
logical bound; keys carry their rotary positions, so positions and slots stay logical too.

**What is not measured.** Attention mass is taken in ``forward``, which is Python and does not run when a full
CUDA graph is replayed. A step that could be such a replay is therefore not observed at all: with full graphs
only the larger prefill chunks are. To have decode steps observed, leave ``enforce_eager`` on (the default of
MemDecayEngine) or set the compilation's ``cudagraph_mode`` to PIECEWISE, where attention stays eager.

**What it costs.** Compaction is about twenty small launches a step. A step that is observed copies its rows to
the host before the pass and the mass after it, and in each observed layer gathers the request's keys and runs
the float32 torch reference on them: slow, a kernel is to take its place. The report is of the same step. The
waits are short where asynchronous scheduling is off, as it has to be here: the device is drained between steps
anyway, when the sampled tokens are read.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.config import VllmConfig
from vllm.utils.gpu_sync_debug import gpu_sync_allowed
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadata,
    FlashAttentionMetadataBuilder,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.kv_cache_interface import AttentionSpec

from memdecay_adapters.engine.attention_rows import check_step_rows, queries_to_keep, rows_to_observe
from memdecay_adapters.engine.observer import ObservedRows, StepObserver
from memdecay_adapters.engine.settings import ADDITIONAL_CONFIG_KEY
from memdecay_adapters.engine.tier.queries import QueryTails
from memdecay_agents.errors import UnsupportedError
from memdecay_kernels import CompactRowBuffers, compact_block_table


@dataclass
class MemDecayFlashMetadata(FlashAttentionMetadata):
    """The stock metadata and the rows that this step observes."""

    observed_rows: ObservedRows | None = None
    observed_layers: frozenset[str] = frozenset()
    queries: QueryTails | None = None
    """Keeps queries for recall, where this step has some to keep."""


class MemDecayFlashMetadataBuilder(FlashAttentionMetadataBuilder):
    """Builds stock metadata over the retained pages only.

    Compaction depends on the configuration alone, not on what a worker binds: in an engine without memdecay
    settings this builder is the stock one, in one with them it always compacts.
    """

    requires_block_table_width: ClassVar[bool] = True
    supports_update_block_table: bool = False
    """The update puts another row table into finished metadata, past the compaction; vLLM then builds anew."""

    observer: StepObserver | None = None
    """Bound by the worker; without it nothing is measured."""
    observed_layers: frozenset[str] = frozenset()

    def __init__(
        self,
        kv_cache_spec: AttentionSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
        block_table_width: int,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.supports_draft_decode_metadata_update = False
        self._buffers: CompactRowBuffers | None = None
        if ADDITIONAL_CONFIG_KEY in (vllm_config.additional_config or {}):
            max_rows = max(vllm_config.scheduler_config.max_num_seqs, self.max_cudagraph_size or 0)
            self._buffers = CompactRowBuffers(max_rows, block_table_width, self.block_size, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> FlashAttentionMetadata:
        """See the base class; rows are compacted first, without a wait for the device.

        Raises:
            UnsupportedError: rows share a common prefix by cascade attention, which counts logical pages.
        """
        if self._buffers is None:
            return super().build(common_prefix_len, common_attn_metadata, fast_build)
        if common_prefix_len:
            raise UnsupportedError(
                where=f"attention metadata with a common prefix of {common_prefix_len} tokens",
                rule="cascade attention counts logical pages, and compacted rows have fewer",
                remedy="Install the vLLM version that memdecay-agents names: it has no cascade attention.",
            )
        common = self._compact(common_attn_metadata, self._buffers)
        stock = super().build(0, common, fast_build)
        rows, queries = self._observe(common_attn_metadata), self._queries(common_attn_metadata)
        if rows is None and queries is None:
            return stock
        return MemDecayFlashMetadata(
            **vars(stock), observed_rows=rows, observed_layers=self.observed_layers, queries=queries
        )

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> FlashAttentionMetadata:
        """See the base class; the captured step reads the compacted rows' buffers and measures nothing."""
        observer, self.observer = self.observer, None
        try:
            return super().build_for_cudagraph_capture(common_attn_metadata)
        finally:
            self.observer = observer

    def update_block_table(
        self, metadata: FlashAttentionMetadata, blk_table: torch.Tensor, slot_mapping: torch.Tensor
    ) -> FlashAttentionMetadata:
        """Not supported, as ``supports_update_block_table`` says.

        Raises:
            UnsupportedError: always, unless the engine runs without memdecay.
        """
        if self._buffers is None:
            return super().update_block_table(metadata, blk_table, slot_mapping)
        raise UnsupportedError(
            where="update_block_table",
            rule="it would put uncompacted rows into compacted metadata",
            remedy="Use a model with one group of full-attention layers.",
        )

    def _compact(self, common: CommonAttentionMetadata, buffers: CompactRowBuffers) -> CommonAttentionMetadata:
        requests = common.num_reqs
        block_table, seq_lens = buffers.compact(common.block_table_tensor[:requests], common.seq_lens[:requests])
        return dataclasses.replace(common, block_table_tensor=block_table, seq_lens=seq_lens)

    def _observe(self, common: CommonAttentionMetadata) -> ObservedRows | None:
        """Rows to observe, and the check of all rows when asked; both read the device."""
        observer = self.observer
        if observer is None:
            return None
        wanted = bool(observer.directions.observe) and not self._may_be_a_replay(common)
        if not wanted and observer.directions.expected_rows is None:
            return None
        requests = len(observer.request_ids())  # without the padding rows of a CUDA graph
        with gpu_sync_allowed():
            block_table, seq_lens = common.block_table_tensor[:requests].cpu(), common.seq_lens[:requests].cpu()
        check_step_rows(observer, block_table, seq_lens, self.block_size)
        if not wanted:
            return None
        table = compact_block_table(block_table, seq_lens, self.block_size)
        return rows_to_observe(observer, table, common.query_start_loc_cpu.tolist(), self.block_size)

    def _queries(self, common: CommonAttentionMetadata) -> QueryTails | None:
        """Where this step's layers put their queries; a replay's are not seen, and older ones are of no use then."""
        if self.observer is None:
            return None
        queries = queries_to_keep(self.observer, common.query_start_loc_cpu.tolist)
        if queries is None or not self._may_be_a_replay(common):
            return queries
        for request_id in self.observer.request_ids():
            queries.forget(request_id)
        return None

    def _may_be_a_replay(self, common: CommonAttentionMetadata) -> bool:
        """Whether this step could run as a full CUDA graph, in which nothing can be measured."""
        return bool(self.use_full_cuda_graph and common.num_actual_tokens <= (self.max_cudagraph_size or 0))


class MemDecayFlashImpl(FlashAttentionImpl):
    """Stock attention, then the mass of the newest queries where it is wanted."""

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: FlashAttentionMetadata,
        output: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        """See the base class."""
        result = super().forward(layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs)
        if not isinstance(attn_metadata, MemDecayFlashMetadata):
            return result
        if attn_metadata.queries is not None:
            attn_metadata.queries.take(str(layer.layer_name), query)
        if layer.layer_name in attn_metadata.observed_layers:
            add_mass(attn_metadata.observed_rows, query, kv_cache, self.scale)
        return result


def add_mass(rows: ObservedRows | None, query: torch.Tensor, kv_cache: torch.Tensor, scale: float) -> None:
    """Add one layer's attention mass to the rows.

    Args:
        rows: the step's, if it measures any; their mass grows, and the key norms that are wanted, where the cache is.
        query: ``[tokens, num_heads, head_dim]``: the batch's queries.
        kv_cache: ``[num_pages, num_kv_heads, page_size, 2 * head_dim]``, keys first, in any strides (FlashAttention
            stores heads or tokens outermost); never written.
        scale: the softmax scale.
    """
    if rows is not None:
        started = time.perf_counter_ns()
        with gpu_sync_allowed():
            keys = kv_cache[..., : kv_cache.shape[-1] // 2]
            rows.plan.add_layer(query, keys, None, scale)
            if rows.norms is not None:
                rows.norms.add_layer(keys, None)
        rows.stopwatch.add_since(started)


class DeviceStepObserver(StepObserver):
    """A `StepObserver` whose sums are on the device; reporting copies them to the host and waits for that."""

    def report(self) -> Any:
        """See the base class."""
        with gpu_sync_allowed():
            return super().report()


class MemDecayFlashBackend(FlashAttentionBackend):
    """The FlashAttention backend over retained pages; pages are multiples of 16 tokens, as in the stock one."""

    @staticmethod
    def get_impl_cls() -> type[FlashAttentionImpl]:
        """The implementation class."""
        return MemDecayFlashImpl

    @staticmethod
    def get_builder_cls() -> type[FlashAttentionMetadataBuilder]:
        """The metadata builder class."""
        return MemDecayFlashMetadataBuilder


def register_flash_backend() -> None:
    """Make ``FLASH_ATTN`` mean this backend; idempotent.

    Engines without memdecay settings in the same process keep stock behaviour.
    """
    path = f"{MemDecayFlashBackend.__module__}.{MemDecayFlashBackend.__qualname__}"
    register_backend(AttentionBackendEnum.FLASH_ATTN, path)
