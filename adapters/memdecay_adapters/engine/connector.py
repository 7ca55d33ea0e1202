"""The two-way channel between scheduler and worker. It moves no keys or values.

vLLM's KV-connector interface gives each side one message a step: the scheduler's `StepDirections` ride on
the step's output, the worker's `AttentionReport` on its result.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from memdecay_adapters.engine.block_rows import held_pages
from memdecay_adapters.engine.complete import REMEDY, check_complete
from memdecay_adapters.engine.controller import EvictionController
from memdecay_adapters.engine.core_methods import install_core_methods
from memdecay_adapters.engine.events import MEASUREMENT_SECONDS
from memdecay_adapters.engine.gauges import GaugeSchedule, read_gauges
from memdecay_adapters.engine.integrity import check_rows_against_pool
from memdecay_adapters.engine.manager import MemDecayManager
from memdecay_adapters.engine.metrics import EventDeltas, ServedMetrics
from memdecay_adapters.engine.observer import StepObserver
from memdecay_adapters.engine.pressure import PoolPressure
from memdecay_adapters.engine.step_messages import AttentionReport, StepDirections
from memdecay_adapters.engine.tier.book import TierBook
from memdecay_adapters.engine.tier.support import check_tier_supported
from memdecay_adapters.engine.tier.swaps import Swaps
from memdecay_adapters.engine.tier.worker_tier import WorkerTier
from memdecay_adapters.engine.trace_spans import span_of, traces_requests
from memdecay_agents.errors import UnsupportedError

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class MemDecayConnector(KVConnectorBase_V1, SupportsHMA):
    """Carries freed pages and observation requests to the worker and attention mass back."""

    requires_kv_delivery = False

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig | None = None
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._settings = check_complete(vllm_config)
        check_tier_supported(vllm_config, self._settings)
        self._kv_cache_config = kv_cache_config
        self._ranks = vllm_config.parallel_config.tensor_parallel_size
        self._chunk_tokens = vllm_config.scheduler_config.max_num_batched_tokens
        self._observer: StepObserver | None = None
        self._controller: EvictionController | None = None
        self._swaps: Swaps | None = None
        self._worker_tier: WorkerTier | None = None
        self._reported: dict[tuple[str, tuple[str, ...]], int] = {}
        self._gauges = GaugeSchedule()
        self._traces_requests = traces_requests(vllm_config)
        self._reported_version = 0

    @property
    def controller(self) -> EvictionController:
        """The scheduler side's controller; it exists once the cache manager was met."""
        assert self._controller is not None
        return self._controller

    @property
    def swaps(self) -> Swaps:
        """The scheduler side's swaps; they exist where there is a host tier, once the cache manager was met."""
        assert self._swaps is not None
        return self._swaps

    # ---- scheduler side

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        """Meet the cache manager that the scheduler has built.

        Raises:
            UnsupportedError: it is not one full-attention group under our manager.
        """
        super().bind_kv_cache_manager(kv_cache_manager)
        managers = kv_cache_manager.coordinator.single_type_managers
        if len(managers) != 1 or not isinstance(managers[0], MemDecayManager):
            raise UnsupportedError(
                where=f"KV-cache groups {[type(manager).__name__ for manager in managers]}",
                rule="pages are evicted from exactly one full-attention group",
                remedy=f"Use a model whose layers are all full attention, and the memdecay worker. {REMEDY}",
            )
        self.manager = managers[0]
        pool_pages = self.manager.block_pool.num_gpu_blocks - 1
        self._controller = EvictionController(self._settings, self.manager.block_size, self._chunk_tokens, pool_pages)
        self.controller.free_blocks = self.manager.free_row
        self.manager.controller = self.controller
        MemDecayManager.chunk_pages = self.controller.chunk_pages
        self.manager.pressure = PoolPressure(self.controller, self.manager)
        if self._settings.host_tier is not None:
            assert self._kv_cache_config is not None
            group = self._kv_cache_config.kv_cache_groups[0]
            page_bytes = group.kv_cache_spec.page_size_bytes * len(group.layer_names) * self._ranks
            book = TierBook(self._settings.host_tier, page_bytes, self.controller.events)
            self.controller.tier, self.controller.row_of = book, self.manager.row
            self._swaps = self.manager.swaps = Swaps(self.controller, self.manager, book, self._chunk_tokens)
        install_core_methods()

    def on_new_request(self, request: Request) -> None:
        """Read a request's hints."""
        self.controller.start(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens that an idle session of the request holds: their keys and values are in the cache already.

        None as their number makes vLLM pass the request over in this step: it waits for admission.
        """
        return self.controller.matched_tokens(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """Nothing to do: pages are accounted for where they are allocated."""

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """This step's directions for the worker."""
        tier = None if self._swaps is None else self._swaps.directions(scheduler_output.num_scheduled_tokens)
        directions = StepDirections(*self.controller.step(scheduler_output.num_scheduled_tokens), tier=tier)
        if self._swaps is not None:
            directions.restored = self.controller.take_restored()
        if self._settings.check_integrity:
            pool = self.manager.block_pool
            rows = dict(self.manager.req_to_blocks)
            idle = {session.state.key: session.blocks for session in self.controller.sessions}
            check_rows_against_pool({**rows, **idle}, pool.free_block_queue.get_all_free_blocks(), pool.num_gpu_blocks)
            self.controller.check_integrity({request_id: held_pages(blocks) for request_id, blocks in rows.items()})
            directions.expected_rows = {
                request_id: [0 if block.is_null else block.block_id for block in rows.get(request_id, ())]
                for request_id in scheduler_output.num_scheduled_tokens
            }
        return directions

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Take in what the worker measured."""
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, AttentionReport):
            report.check_ranks(self._ranks)
            self.controller.events.count(MEASUREMENT_SECONDS, by=report.nanoseconds)
            if self._swaps is not None:
                self._swaps.note_work(report.tier)
            for request_id, measured in report.averaged():
                norms = measured.key_norms
                self.controller.observe(
                    request_id,
                    measured.token_index.numpy(),
                    measured.mass.numpy(),
                    None if norms is None else norms.numpy(),
                )

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """End a request's state; its retention summary rides on the request's last output."""
        summary = self.controller.finish(request.request_id)
        if summary is not None and self._traces_requests:
            span_of(request, summary)
        return False, {"memdecay": summary} if summary is not None else None

    def get_kv_connector_stats(self) -> EventDeltas | None:
        """What was counted since the last step, for the metrics of vLLM's server; None in a worker."""
        if self._controller is None:
            return None
        events, deltas = self._controller.events, EventDeltas()
        if self._reported_version != events.version:
            self._reported_version = events.version
            deltas = EventDeltas.since(events, self._reported)
        if self._gauges.is_due(self._controller.request_count):
            started = time.perf_counter()
            pool = self.manager.block_pool
            deltas.with_gauges(read_gauges(self._controller, pool.num_gpu_blocks - 1, int(pool.get_num_free_blocks())))
            self._gauges.took(time.perf_counter() - started)
        return deltas

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> EventDeltas:
        """Statistics from their plain data."""
        return EventDeltas(data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> ServedMetrics:
        """Where vLLM's server shows them."""
        return ServedMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """The engine core ends: say which budgets never bound."""
        if self._controller is not None:
            self._controller.note_unbound_budgets()

    # ---- worker side

    def bind_observer(self, observer: StepObserver) -> None:
        """Meet the worker's observer."""
        self._observer = observer

    def bind_tier(self, tier: WorkerTier) -> None:
        """Meet the worker's tier."""
        self._worker_tier = tier

    def has_connector_metadata(self) -> bool:
        """Whether attention layers are to load and save here, which is what vLLM asks this for: they never are.

        So `wait_for_layer_load` and `save_kv_layer` are not called in every layer of every step. The directions of a
        step go to the worker itself.
        """
        return False

    def build_connector_worker_meta(self) -> AttentionReport | None:
        """What this worker measured in the step."""
        report = self._observer.report() if self._observer is not None else None
        found = self._worker_tier.report() if self._worker_tier is not None else None
        if found is not None:
            report = report or AttentionReport()
            report.tier = found
        return report

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        """Nothing is loaded."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is loaded."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing is saved."""

    def wait_for_save(self) -> None:
        """Nothing is saved."""

    def take_events(self) -> Iterable[Any]:
        """No cache events."""
        return ()
