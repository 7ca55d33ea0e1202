"""The KV-cache spec that makes vLLM's engine core use our manager for full-attention layers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from vllm.config import VllmConfig
from vllm.utils.math_utils import cdiv
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

from memdecay_adapters.engine.manager import MemDecayManager
from memdecay_adapters.engine.settings import EngineSettings
from memdecay_agents.errors import UnsupportedError
from memdecay_agents.policies import get_policy


@dataclass(frozen=True, kw_only=True)
class MemDecaySpec(FullAttentionSpec):
    """A full-attention cache whose requests may hold fewer pages than their length."""

    def max_memory_usage_bytes(self, vllm_config: VllmConfig) -> int:
        """Bytes that one request of maximal length must have: its guaranteed budget and one prefill chunk.

        vLLM refuses to start when this does not fit the pool; under a default budget a prompt larger
        than the pool is served all the same.
        """
        full = int(super().max_memory_usage_bytes(vllm_config))
        config = EngineSettings.from_vllm_config(vllm_config).config
        budget = config.budget_of("")
        if budget is None or not get_policy(config.policy, config).evicts:
            return full
        chunk_tokens = vllm_config.scheduler_config.max_num_batched_tokens
        pages = budget.guarantee // self.block_size + cdiv(chunk_tokens, self.block_size) + 1
        return min(full, pages * self.page_size_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle through `_registered_spec`: the engine core of a multi-process vLLM gets its specs from a worker."""
        return _registered_spec, (_init_fields(self),)


def _registered_spec(fields: dict[str, Any]) -> MemDecaySpec:
    """Rebuild a spec in another process and tell vLLM there which manager serves it.

    Without that vLLM would silently serve the spec's base class by its own manager.
    """
    register_spec()
    return MemDecaySpec(**fields)


def _init_fields(spec: FullAttentionSpec) -> dict[str, Any]:
    return {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec) if field.init}


def register_spec() -> None:
    """Tell vLLM which manager serves `MemDecaySpec`; idempotent.

    The built-in specs must be registered first, or vLLM takes our registration for a complete one.
    """
    KVCacheSpecRegistry._ensure_registered()
    KVCacheSpecRegistry.register(MemDecaySpec, MemDecayManager, uniform_type_base_spec=FullAttentionSpec)


def to_memdecay_specs(specs: dict[str, KVCacheSpec]) -> dict[str, KVCacheSpec]:
    """Replace each layer's full-attention spec by ours.

    Raises:
        UnsupportedError: a layer with any other kind of cache (sliding window, chunked, MLA, Mamba).
    """
    replaced: dict[str, KVCacheSpec] = {}
    for layer, spec in specs.items():
        windowed = getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None)
        if type(spec) is not FullAttentionSpec or windowed:
            kind = f"{type(spec).__name__}, window {windowed}" if windowed else type(spec).__name__
            raise UnsupportedError(
                where=f"layer {layer!r}",
                rule=f"its cache is {kind}; pages are evicted from plain full attention only",
                remedy="Use a model whose layers are all full attention (Llama, Qwen2.5, Qwen3, SmolLM2, ...), "
                "or run this one in vLLM without memdecay.",
            )
        replaced[layer] = MemDecaySpec(**_init_fields(spec))
    return replaced
