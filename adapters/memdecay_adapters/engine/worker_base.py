"""What the CPU and the GPU worker share: the spec, what is refused, the observer, and the hook of each step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

from memdecay_adapters.engine.complete import REMEDY, check_complete
from memdecay_adapters.engine.connector import MemDecayConnector
from memdecay_adapters.engine.observer import StepObserver, observed_layer_names
from memdecay_adapters.engine.spec import register_spec, to_memdecay_specs
from memdecay_adapters.engine.step_messages import StepDirections
from memdecay_adapters.engine.support import check_attention_layer
from memdecay_adapters.engine.tier.settings import HostTier
from memdecay_adapters.engine.tier.worker_tier import WorkerTier
from memdecay_adapters.engine.versions import require_supported_vllm
from memdecay_agents.errors import UnsupportedError

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_worker import Worker as _Worker
else:
    _Worker = object


class RunnerRows(Protocol):
    """A model runner's block-table rows."""

    def null_evicted(self, scheduler_output: SchedulerOutput, evicted: dict[str, list[int]]) -> None:
        """Make evicted entries null in the step that is about to run.

        Args:
            scheduler_output: the step.
            evicted: request id to logical pages.
        """

    def fill_restored(self, restored: dict[str, dict[int, int]]) -> None:
        """Write pages that came back, after `null_evicted`.

        Args:
            restored: request id to logical page to page id.
        """

    def request_ids(self, scheduler_output: SchedulerOutput) -> Callable[[], list[str]]:
        """How to learn the batch's request ids in row order, while the step's metadata are built."""


class MemDecayWorkerMixin(_Worker):
    """Region-aware eviction for a vLLM worker; to be named before the worker among the bases.

    Raises:
        UnsupportedError: at start-up, for a model, option, runner or vLLM version that eviction would
            silently break.
    """

    builder_class: ClassVar[type[Any]]
    """The metadata builder that must have been chosen for every attention layer."""

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        require_supported_vllm()
        self._refuse_unsupported(vllm_config)
        register_spec()
        self._register_backend()
        self._settings = check_complete(vllm_config)
        self._observer = self._new_observer()
        super().__init__(vllm_config, *args, **kwargs)

    @abstractmethod
    def _refuse_unsupported(self, vllm_config: VllmConfig) -> None:
        """Raise an UnsupportedError for a configuration that this worker does not serve."""

    @abstractmethod
    def _register_backend(self) -> None:
        """Make vLLM choose our attention backend; idempotent."""

    @abstractmethod
    def _rows_of(self, model_runner: Any) -> RunnerRows:
        """The runner's rows; raises an UnsupportedError for a runner that is not known."""

    def _new_observer(self) -> StepObserver:
        return StepObserver()

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """The layers' cache specs, each replaced by `MemDecaySpec`."""
        return to_memdecay_specs(super().get_kv_cache_spec())

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """See the base class; then binds the observer to the builders and the connector."""
        super().initialize_from_config(kv_cache_config)
        self._rows = self._rows_of(self.model_runner)
        page_size = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        for group in self.model_runner.attn_groups:
            for attention in group:
                self._bind_builder(attention, page_size)
        for layer in self.model_runner.compilation_config.static_forward_context.values():
            check_attention_layer(layer)
        connector = get_kv_transfer_group()
        if not isinstance(connector, MemDecayConnector):
            raise UnsupportedError(
                where=f"KV connector {type(connector).__name__}",
                rule="the memdecay worker needs the memdecay connector",
                remedy=REMEDY,
            )
        connector.bind_observer(self._observer)
        if self._settings.host_tier is not None:
            self._tier = self._new_tier(self._settings.host_tier)
            self._observer.queries = self._tier.queries
            connector.bind_tier(self._tier)

    _tier: WorkerTier | None = None

    @abstractmethod
    def _new_tier(self, tier: HostTier) -> WorkerTier:
        """A tier over the runner's cache; raises an UnsupportedError for a runner or cache that it cannot serve."""

    def _bind_builder(self, attention: Any, page_size: int) -> None:
        builder = attention.get_metadata_builder(0)
        if not isinstance(builder, self.builder_class) or builder.block_size != page_size:
            raise UnsupportedError(
                where=f"attention backend {attention.backend.__name__}",
                rule=f"its blocks of {builder.block_size} tokens are not the cache's pages of {page_size}, "
                "or another backend was chosen",
                remedy="Leave attention_backend unset and choose a page size that is a multiple of 16.",
            )
        builder.observer = self._observer
        builder.observed_layers = observed_layer_names(attention.layer_names, self._settings.config.observed_layers)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """See the base class; the generators of requests whose token may be discarded are remembered."""
        if self._tier is not None:
            requests = self.model_runner.requests
            self._tier.before_sampling(lambda request_id: requests[request_id].generator)
        return super().sample_tokens(grammar_output)

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        """One step: copy what left or comes back, null what the scheduler freed, then run vLLM's own step."""
        directions = scheduler_output.kv_connector_metadata
        if isinstance(directions, StepDirections):
            if self._tier is not None and directions.tier is not None:
                self._tier.before_step(directions.tier, scheduler_output.finished_req_ids)
            self._rows.null_evicted(scheduler_output, directions.evicted)
            if directions.restored:
                self._rows.fill_restored(directions.restored)
            self._observer.start_step(directions, self._rows.request_ids(scheduler_output))
        return super().execute_model(scheduler_output)
