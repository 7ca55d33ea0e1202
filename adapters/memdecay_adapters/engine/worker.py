"""The worker: stock vLLM, with evicted pages nulled before the forward pass and attention measured in it."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from memdecay_adapters.engine.cpu_backend import MemDecayCPUMetadataBuilder, register_cpu_backend
from memdecay_adapters.engine.cpu_key_layout import probe_keys
from memdecay_adapters.engine.cpu_seeds import check_runner_generators, generators_of_sampled_rows
from memdecay_adapters.engine.support import check_supported
from memdecay_adapters.engine.tier.cpu_tier import cpu_worker_tier
from memdecay_adapters.engine.tier.settings import HostTier
from memdecay_adapters.engine.tier.worker_tier import WorkerTier
from memdecay_adapters.engine.worker_base import MemDecayWorkerMixin, RunnerRows
from memdecay_adapters.engine.worker_rows import V1Rows
from memdecay_agents.errors import UnsupportedError


class MemDecayCPUWorker(MemDecayWorkerMixin, CPUWorker):
    """vLLM's CPU worker with region-aware eviction.

    Raises:
        UnsupportedError: at start-up, for a model, option, runner or vLLM version that eviction would
            silently break.
    """

    builder_class = MemDecayCPUMetadataBuilder

    def _refuse_unsupported(self, vllm_config: VllmConfig) -> None:
        check_supported(vllm_config)

    def _register_backend(self) -> None:
        register_cpu_backend()

    def init_device(self) -> None:
        """See the base class; refuses a model runner whose rows are not known here."""
        super().init_device()
        if not isinstance(self.model_runner, GPUModelRunner):
            raise UnsupportedError(
                where=f"model runner {type(self.model_runner).__name__}",
                rule="evicted pages are nulled in the V1 model runner's rows only",
                remedy="Set VLLM_USE_V2_MODEL_RUNNER=0.",
            )
        check_runner_generators(self.model_runner)

    def _rows_of(self, model_runner: Any) -> RunnerRows:
        return V1Rows(model_runner)

    def _bind_builder(self, attention: Any, page_size: int) -> None:
        super()._bind_builder(attention, page_size)
        builder = attention.get_metadata_builder(0)
        probe_keys(builder.isa, page_size, builder.head_dim, builder.dtype)

    def _new_tier(self, tier: HostTier) -> WorkerTier:
        return cpu_worker_tier(self.model_runner, tier, self.vllm_config)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """See the base class; seeded requests keep their generators for the tokens that count."""
        with generators_of_sampled_rows(self.model_runner):
            return super().sample_tokens(grammar_output)
