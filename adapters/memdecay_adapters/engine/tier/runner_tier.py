"""A tier over a model runner's cache: the only contact of the tier with vLLM 0.32's V1 model runner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.model_executor.models.utils import extract_layer_index

from memdecay_adapters.engine.required import require_attributes
from memdecay_adapters.engine.tier.worker_tier import Shard

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner


class RunnerParts:
    """What a tier needs of a runner whose cache was made.

    Args:
        runner: vLLM's V1 model runner.
        vllm_config: the engine's.

    Raises:
        UnsupportedError: the runner or its attention layers lack an attribute that is used here.
    """

    def __init__(self, runner: GPUModelRunner, vllm_config: VllmConfig) -> None:
        require_attributes(runner, "vLLM's V1 model runner", ("requests", "attn_groups"))
        context = vllm_config.compilation_config.static_forward_context
        self.names = sorted(
            (name for group in runner.attn_groups[0] for name in group.layer_names), key=extract_layer_index
        )
        self.first_layer: Any = context[self.names[0]]
        require_attributes(self.first_layer, "vLLM's attention layer", ("kv_cache", "impl.scale"))
        self.caches: list[torch.Tensor] = [context[name].kv_cache for name in self.names]
        """``[num_pages, num_kv_heads, page_size, 2 * head_dim]`` each, in model order."""
        self.scale: float = self.first_layer.impl.scale
        self.shard = Shard(
            get_tensor_model_parallel_rank(),
            vllm_config.parallel_config.tensor_parallel_size,
            vllm_config.model_config.get_total_num_kv_heads(),
        )
