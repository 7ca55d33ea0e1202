"""The tier of a CPU worker: a head's keys are packed for the processor, and come before its values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from memdecay_adapters.engine.cpu_key_layout import cpu_key_layout
from memdecay_adapters.engine.required import require_attributes
from memdecay_adapters.engine.tier.runner_tier import RunnerParts
from memdecay_adapters.engine.tier.settings import HostTier
from memdecay_adapters.engine.tier.worker_tier import WorkerTier

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def cpu_worker_tier(runner: GPUModelRunner, tier: HostTier, vllm_config: VllmConfig) -> WorkerTier:
    """The tier over a CPU runner's cache.

    Raises:
        UnsupportedError: the runner lacks an attribute that is used here, or its layers differ.
    """
    parts = RunnerParts(runner, vllm_config)
    require_attributes(parts.first_layer, "vLLM's attention layer", ("isa",))
    _, _, page_size, both = parts.caches[0].shape
    layout = cpu_key_layout(parts.first_layer.isa, page_size, both // 2, parts.caches[0].dtype)

    def keys_of(cells: torch.Tensor) -> torch.Tensor:
        return layout.unpack(cells.flatten(1)[:, : page_size * both // 2])

    return WorkerTier(tier, parts.caches, parts.names, keys_of, parts.scale, parts.shard)
