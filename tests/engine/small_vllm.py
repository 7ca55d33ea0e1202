"""The configuration of a small engine that measures attention in every step, and vLLM's arguments for it."""

from __future__ import annotations

from memdecay_agents import MemDecayConfig

CONFIG = MemDecayConfig(page_size_tokens=16, observed_layers="all", measure_every_steps=1)
VLLM = {
    "dtype": "float32",
    "max_model_len": 1024,
    "max_num_batched_tokens": 128,
    "max_num_seqs": 4,
    "kv_cache_memory_bytes": 2**26,
    "enforce_eager": True,
    "disable_log_stats": True,
}
