"""The worker: stock vLLM, with evicted pages nulled before the forward pass and attention measured in it."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from memdecay_adapters.engine.complete import REMEDY, check_complete
from memdecay_adapters.engine.connector import MemDecayConnector
from memdecay_adapters.engine.cpu_backend import MemDecayCPUMetadataBuilder, register_cpu_backend
from memdecay_adapters.engine.observer import StepObserver, observed_layer_names
from memdecay_adapters.engine.spec import register_spec, to_memdecay_specs
from memdecay_adapters.engine.step_messages import StepDirections
from memdecay_adapters.engine.support import check_attention_layer, check_supported
from memdecay_adapters.engine.versions import require_supported_vllm
from memdecay_adapters.engine.worker_rows import null_evicted_pages
from memdecay_agents.errors import UnsupportedError


class MemDecayCPUWorker(CPUWorker):
    """vLLM's CPU worker with region-aware eviction.

    Raises:
        UnsupportedError: at start-up, for a model, option, runner or vLLM version that eviction would
            silently break.
    """

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        require_supported_vllm()
        check_supported(vllm_config)
        register_spec()
        register_cpu_backend()
        self._settings = check_complete(vllm_config)
        self._observer = StepObserver()
        super().__init__(vllm_config, *args, **kwargs)

    def init_device(self) -> None:
        """See the base class; refuses a model runner whose rows are not known here."""
        super().init_device()
        if not isinstance(self.model_runner, GPUModelRunner):
            raise UnsupportedError(
                where=f"model runner {type(self.model_runner).__name__}",
                rule="evicted pages are nulled in the V1 model runner's rows only",
                remedy="Set VLLM_USE_V2_MODEL_RUNNER=0.",
            )

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """The layers' cache specs, each replaced by `MemDecaySpec`."""
        return to_memdecay_specs(super().get_kv_cache_spec())

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """See the base class; then binds the observer to the builders and the connector."""
        super().initialize_from_config(kv_cache_config)
        page_size = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        observed_layers = self._settings.config.observed_layers
        for group in self.model_runner.attn_groups:
            for attention in group:
                builder = attention.get_metadata_builder(0)
                if not isinstance(builder, MemDecayCPUMetadataBuilder) or builder.block_size != page_size:
                    raise UnsupportedError(
                        where=f"attention backend {attention.backend.__name__}",
                        rule=f"its blocks of {builder.block_size} tokens are not the cache's pages of {page_size}, "
                        "or another backend was chosen",
                        remedy="Leave attention_backend unset and choose a page size that is a multiple of 16.",
                    )
                builder.observer = self._observer
                builder.observed_layers = observed_layer_names(attention.layer_names, observed_layers)
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

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        """One step: null what the scheduler freed, then run vLLM's own step."""
        directions = scheduler_output.kv_connector_metadata
        if isinstance(directions, StepDirections):
            null_evicted_pages(self.model_runner, directions.evicted)
            self._observer.start_step(directions, lambda: self.model_runner.input_batch.req_ids)
        return super().execute_model(scheduler_output)
