"""The CUDA worker: the same as the CPU worker over vLLM's GPU worker and either of its model runners.

Not run on a GPU: written from vLLM 0.32's sources, and refused unless the user says so
(``allow_untested_gpu``).
"""

from __future__ import annotations

import logging
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.worker.gpu.model_runner import GPUModelRunner as V2ModelRunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner as V1ModelRunner
from vllm.v1.worker.gpu_worker import Worker

from memdecay_adapters.engine.flash_backend import (
    DeviceStepObserver,
    MemDecayFlashMetadataBuilder,
    register_flash_backend,
)
from memdecay_adapters.engine.gpu_support import check_gpu_supported
from memdecay_adapters.engine.observer import StepObserver
from memdecay_adapters.engine.support import check_supported
from memdecay_adapters.engine.tier.gpu_tier import gpu_worker_tier
from memdecay_adapters.engine.tier.settings import HostTier
from memdecay_adapters.engine.tier.worker_tier import WorkerTier
from memdecay_adapters.engine.worker_base import MemDecayWorkerMixin, RunnerRows
from memdecay_adapters.engine.worker_rows import V1Rows
from memdecay_adapters.engine.worker_rows_v2 import V2Rows
from memdecay_agents.errors import UnsupportedError
from memdecay_agents.policies import get_policy

logger = logging.getLogger(__name__)


class MemDecayGPUWorker(MemDecayWorkerMixin, Worker):
    """vLLM's GPU worker with region-aware eviction.

    Raises:
        UnsupportedError: at start-up, for a model, option, runner or vLLM version that eviction would
            silently break, and without the user's word that this may run untested.
    """

    builder_class = MemDecayFlashMetadataBuilder

    def _refuse_unsupported(self, vllm_config: VllmConfig) -> None:
        check_supported(vllm_config)
        check_gpu_supported(vllm_config)

    def _register_backend(self) -> None:
        register_flash_backend()

    def _new_observer(self) -> StepObserver:
        return DeviceStepObserver()

    def _bind_builder(self, attention: Any, page_size: int) -> None:
        super()._bind_builder(attention, page_size)
        config, tier = self._settings.config, self._settings.host_tier
        wanted = ["attention, which its policy weighs"] if get_policy(config.policy, config).uses_attention else []
        wanted += ["queries, by which pages are recalled"] if tier is not None and tier.recall is not None else []
        if wanted and attention.get_metadata_builder(0).use_full_cuda_graph:
            logger.warning(
                "full CUDA graphs are on: in steps of at most %s tokens, decode steps among them, nothing is seen of "
                "the %s. Set enforce_eager=True, or cudagraph_mode='PIECEWISE' in the compilation_config.",
                attention.get_metadata_builder(0).max_cudagraph_size,
                ", nor of the ".join(wanted),
            )

    def _new_tier(self, tier: HostTier) -> WorkerTier:
        return gpu_worker_tier(self.model_runner, tier, self.vllm_config)

    def _rows_of(self, model_runner: Any) -> RunnerRows:
        if isinstance(model_runner, V2ModelRunner):
            return V2Rows(model_runner)
        if isinstance(model_runner, V1ModelRunner):
            return V1Rows(model_runner)
        raise UnsupportedError(
            where=f"model runner {type(model_runner).__name__}",
            rule="it is neither vLLM's V1 nor its V2 model runner, whose rows are known",
            remedy="Leave VLLM_USE_V2_MODEL_RUNNER unset and use a text-only model.",
        )
