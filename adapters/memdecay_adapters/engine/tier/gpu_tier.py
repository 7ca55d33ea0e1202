"""The tier of a CUDA worker: a token's key comes before its value, and the host waits for what it reads.

Not run on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from vllm.utils.gpu_sync_debug import gpu_sync_allowed
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from memdecay_adapters.engine.tier.messages import TierDirections
from memdecay_adapters.engine.tier.report import TierReport
from memdecay_adapters.engine.tier.runner_tier import RunnerParts
from memdecay_adapters.engine.tier.settings import HostTier
from memdecay_adapters.engine.tier.worker_tier import WorkerTier
from memdecay_agents.errors import UnsupportedError

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class DeviceTier(WorkerTier):
    """A `WorkerTier` whose pages and queries are on the device; evidence is weighed on the host, which waits for it."""

    def before_step(self, directions: TierDirections, finished: Iterable[str]) -> None:
        """See the base class."""
        with gpu_sync_allowed():
            super().before_step(directions, finished)

    def report(self) -> TierReport | None:
        """See the base class."""
        with gpu_sync_allowed():
            return super().report()


def token_keys(cells: torch.Tensor) -> torch.Tensor:
    """The keys of pages as FlashAttention has them: ``[pages, page_size, 2 * head_dim]``, each key before its value."""
    return cells[..., : cells.shape[-1] // 2]


def gpu_worker_tier(runner: Any, tier: HostTier, vllm_config: VllmConfig) -> WorkerTier:
    """The tier over a GPU runner's cache.

    Raises:
        UnsupportedError: the runner is not vLLM's V1 one, lacks an attribute that is used here, or its layers differ.
    """
    if not isinstance(runner, GPUModelRunner):
        raise UnsupportedError(
            where=f"host tier on model runner {type(runner).__name__}",
            rule="it keeps a request's computed tokens on the device, where a turn cannot be wound back from here",
            remedy="Set VLLM_USE_V2_MODEL_RUNNER=0, or leave host_tier out.",
        )
    parts = RunnerParts(runner, vllm_config)
    return DeviceTier(tier, parts.caches, parts.names, token_keys, parts.scale, parts.shard)
