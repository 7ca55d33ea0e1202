"""Refuse at start-up what eviction would silently break."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memdecay_agents.errors import UnsupportedError

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def check_supported(vllm_config: VllmConfig) -> None:
    """Check a complete vLLM configuration against what this engine supports.

    Raises:
        UnsupportedError: names the option or the property of the model, and what to change.
    """
    model, parallel, cache = vllm_config.model_config, vllm_config.parallel_config, vllm_config.cache_config
    hf_config = model.hf_text_config
    windows = getattr(hf_config, "sliding_window", None)
    layer_types = set(getattr(hf_config, "layer_types", None) or ())
    uses_window = bool(windows) and getattr(hf_config, "use_sliding_window", True)
    if layer_types:
        uses_window = "sliding_attention" in layer_types
    refusals = [
        (uses_window, "the model has sliding-window layers", "Use a model with full attention in all layers."),
        (model.is_hybrid, "the model is a hybrid of attention and state-space layers",
         "Use a model with full attention in all layers."),
        (model.use_mla, "the model uses multi-head latent attention", "Use a model with grouped-query attention."),
        (model.is_multimodal_model, "the model takes images, audio or video", "Use a text-only model."),
        (model.runner_type != "generate", f"the runner is {model.runner_type!r}", "Use a generating model."),
        (parallel.pipeline_parallel_size > 1, "pipeline parallelism is on", "Set pipeline_parallel_size=1."),
        (parallel.decode_context_parallel_size > 1, "decode context parallelism is on",
         "Set decode_context_parallel_size=1."),
        (parallel.prefill_context_parallel_size > 1, "prefill context parallelism is on",
         "Set prefill_context_parallel_size=1."),
        (parallel.data_parallel_size > 1, "data parallelism is on", "Run one engine per replica."),
        (parallel.world_size != parallel.tensor_parallel_size,
         f"the model is spread over {parallel.world_size} workers, {parallel.tensor_parallel_size} of them by tensor "
         "parallelism", "Set tensor_parallel_size only."),
        (parallel.nnodes > 1, "the workers are on several machines, which is untested", "Set nnodes=1."),
        (parallel.distributed_executor_backend not in ("uni", "mp", None),
         f"the executor is {parallel.distributed_executor_backend!r}, which is untested or has a scheduler per rank",
         "Set distributed_executor_backend='mp'."),
        (not _kv_heads_divide(model.get_total_num_kv_heads(), parallel.tensor_parallel_size),
         f"{model.get_total_num_kv_heads()} key-value heads do not divide among {parallel.tensor_parallel_size} ranks",
         "Set tensor_parallel_size to a divisor of the key-value heads, or to a multiple of them."),
        (vllm_config.speculative_config is not None, "speculative decoding is on", "Leave speculative_config unset."),
        (vllm_config.lora_config is not None, "LoRA is on, which is untested", "Leave enable_lora unset."),
        (str(cache.cache_dtype).startswith(("fp8", "int8", "nvfp4", "turboquant")),
         f"the KV cache is quantised ({cache.cache_dtype})", "Set kv_cache_dtype='auto'."),
        (bool(cache.block_size % 16), f"block_size is {cache.block_size}", "Use a multiple of 16 tokens."),
    ]  # fmt: skip
    for refused, rule, remedy in refusals:
        if refused:
            raise UnsupportedError(where=f"model {model.model!r}", rule=rule, remedy=remedy)


def _kv_heads_divide(kv_heads: int, ranks: int) -> bool:
    """Whether each rank gets as many key-value heads as any other, or as many copies of one.

    vLLM holds a copy of a head on several ranks when there are more ranks than heads. Each rank's mass is the mean
    over its own query heads, as many as any other's, so that the mean over the ranks is the mean over all heads.
    """
    return kv_heads % ranks == 0 or ranks % kv_heads == 0


def check_attention_layer(layer: Any) -> None:
    """Refuse attention whose result depends on more than which tokens are read.

    Args:
        layer: one of vLLM's attention layers, after loading.

    Raises:
        UnsupportedError: a bias by distance, which compacted rows would shift; sinks or a soft cap, which the
            measured attention mass would miss.
    """
    impl = getattr(layer, "impl", None)
    for attribute, name in (
        ("alibi_slopes", "a bias by distance (ALiBi)"),
        ("sinks", "attention sinks of its own"),
        ("logits_soft_cap", "a soft cap on attention logits"),
    ):
        value = getattr(impl, attribute, None)
        if value is not None and value is not False and not (isinstance(value, (int, float)) and value == 0):
            raise UnsupportedError(
                where=f"layer {getattr(layer, 'layer_name', '?')!r}",
                rule=f"its attention has {name}",
                remedy="Use a model with rotary positions and plain softmax attention (Llama, Qwen2.5, Qwen3, ...).",
            )


def check_environment() -> None:
    """Refuse a platform or a model runner that is not served.

    Raises:
        UnsupportedError: another platform than CPU and CUDA, or the V2 model runner by environment variable on
            a CPU.
    """
    from vllm import envs

    from memdecay_adapters.engine.platform_parts import platform_parts

    if envs.VLLM_USE_V2_MODEL_RUNNER and not platform_parts().v2_model_runner:
        raise UnsupportedError(
            where="VLLM_USE_V2_MODEL_RUNNER=1",
            rule="on this platform evicted pages are nulled in the V1 model runner's rows only",
            remedy="Set VLLM_USE_V2_MODEL_RUNNER=0.",
        )
