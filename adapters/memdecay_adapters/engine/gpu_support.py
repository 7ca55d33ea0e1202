"""Refuse at start-up what eviction would silently break on a GPU, beyond what `support` refuses everywhere.

Not run on a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memdecay_adapters.engine.settings import EngineSettings
from memdecay_agents.errors import UnsupportedError

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def check_gpu_supported(vllm_config: VllmConfig) -> None:
    """Check a complete vLLM configuration against what the CUDA worker is written for.

    vLLM 0.32 knows no environment variable for the attention backend: it is the engine argument
    ``attention_backend`` (or ``attention_config``), which MemDecayEngine sets to FLASH_ATTN.

    Raises:
        UnsupportedError: names the option, and what to change.
    """
    require_untested_gpu_allowed(EngineSettings.from_vllm_config(vllm_config).allow_untested_gpu)
    attention, parallel = vllm_config.attention_config, vllm_config.parallel_config
    backend = attention.backend.name if attention.backend is not None else "chosen by vLLM"
    refusals = [
        (vllm_config.scheduler_config.async_scheduling,
         "asynchronous scheduling is on, as is vLLM's default on CUDA: a step would be planned and its rows written "
         "while the one before it still runs and reads them", "Set async_scheduling=False."),
        (backend != "FLASH_ATTN", f"the attention backend is {backend}; evicted pages are left out of FlashAttention "
         "only", "Set attention_backend='FLASH_ATTN'."),
        (bool(attention.backend_per_kind), "attention backends are set for each kind of cache",
         "Leave attention_config.backend_per_kind unset."),
        (parallel.use_ubatching, "steps are cut into microbatches, whose rows are not told apart",
         "Leave enable_dbo and ubatch_size unset."),
        (vllm_config.cache_config.kv_sharing_fast_prefill, "fast prefill for layers that share a cache is on, which "
         "puts another attention backend in place", "Leave kv_sharing_fast_prefill unset."),
        (vllm_config.model_config.enable_sleep_mode, "sleep mode is on: sleeping discards the pages that idle sessions "
         "hold", "Leave enable_sleep_mode unset."),
    ]  # fmt: skip
    for refused, rule, remedy in refusals:
        if refused:
            raise UnsupportedError(where=f"model {vllm_config.model_config.model!r} on CUDA", rule=rule, remedy=remedy)


def require_untested_gpu_allowed(allowed: bool) -> None:
    """Ask for the user's word before code runs that nobody has run.

    Raises:
        UnsupportedError: the word was not given.
    """
    if not allowed:
        raise UnsupportedError(
            where="vLLM platform 'cuda'",
            rule="the CUDA worker was written from vLLM's sources and has never been run on a GPU",
            remedy="Pass MemDecayEngine(..., allow_untested_gpu=True) to try it and check its answers against "
            "stock vLLM, or install the extra 'cpu' in an environment of its own.",
        )
