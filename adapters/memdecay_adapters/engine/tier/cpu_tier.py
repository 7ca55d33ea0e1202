"""The tier of a CPU worker: the only contact of the tier with vLLM 0.32's V1 model runner and its cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.distributed import get_tensor_model_parallel_rank
from vllm.model_executor.models.utils import extract_layer_index

from memdecay_adapters.engine.cpu_key_layout import cpu_key_layout
from memdecay_adapters.engine.required import require_attributes
from memdecay_adapters.engine.tier.settings import HostTier
from memdecay_adapters.engine.tier.worker_tier import Shard, WorkerTier

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def cpu_worker_tier(runner: GPUModelRunner, tier: HostTier, vllm_config: VllmConfig) -> WorkerTier:
    """The tier over a CPU runner's cache.

    Raises:
        UnsupportedError: the runner lacks an attribute that is used here, or its layers differ.
    """
    require_attributes(runner, "vLLM's V1 model runner", ("kv_caches", "requests", "attn_groups"))
    names = sorted((name for group in runner.attn_groups[0] for name in group.layer_names), key=extract_layer_index)
    layer = vllm_config.compilation_config.static_forward_context[names[0]]
    caches = [vllm_config.compilation_config.static_forward_context[name].kv_cache for name in names]
    require_attributes(layer, "vLLM's attention layer", ("kv_cache", "isa", "impl.scale"))
    _, _, page_size, both = caches[0].shape
    layout = cpu_key_layout(layer.isa, page_size, both // 2, caches[0].dtype)
    shard = Shard(
        get_tensor_model_parallel_rank(),
        vllm_config.parallel_config.tensor_parallel_size,
        vllm_config.model_config.get_total_num_kv_heads(),
    )
    return WorkerTier(tier, caches, names, layout, layer.impl.scale, shard)
