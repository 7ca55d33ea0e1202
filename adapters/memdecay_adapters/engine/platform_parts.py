"""Which worker, attention backend and engine arguments serve the platform that vLLM runs on.

The CUDA parts are not run on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memdecay_adapters.engine.gpu_support import require_untested_gpu_allowed
from memdecay_agents.errors import ConfigError, UnsupportedError


@dataclass(frozen=True)
class PlatformParts:
    """What differs between platforms when an engine is started."""

    name: str
    """vLLM's name of the platform."""
    worker_cls: str
    """The worker, by path: vLLM imports it in the worker's process, and with it the attention backend."""
    attention_backend: str
    """The name in vLLM's registry that is overridden by our backend."""
    v2_model_runner: bool
    """Whether vLLM's V2 model runner is served beside V1."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Engine arguments, where the user says nothing."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Engine arguments that the user may repeat and not change."""

    def check(self, engine_args: Mapping[str, Any]) -> None:
        """Refuse a user's engine argument that contradicts a fixed one.

        Raises:
            ConfigError: names the argument.
        """
        for name, value in self.fixed.items():
            given = engine_args.get(name)
            given = getattr(given, "name", given)  # vLLM takes its enum's members and their names
            if given is not None and given != value:
                raise ConfigError(
                    where=f"engine_args[{name!r}]",
                    rule=f"it is {given!r}, and on platform {self.name!r} only {value!r} is served",
                    remedy="Leave it out.",
                )


CPU = PlatformParts(
    name="cpu",
    worker_cls="memdecay_adapters.engine.worker.MemDecayCPUWorker",
    attention_backend="CPU_ATTN",
    v2_model_runner=False,
)

CUDA = PlatformParts(
    name="cuda",
    worker_cls="memdecay_adapters.engine.gpu_worker.MemDecayGPUWorker",
    attention_backend="FLASH_ATTN",
    v2_model_runner=True,
    # None: vLLM's own choice, a share of the GPU's memory.
    defaults={"kv_cache_memory_bytes": None},
    # vLLM turns asynchronous scheduling on by default on CUDA. With it a step is planned while the one before it
    # runs, so that a page could be freed and given away under a row that is still read; elsewhere that has let a
    # token overwrite a survivor. It stays off until it is tested.
    fixed={"async_scheduling": False, "attention_backend": "FLASH_ATTN"},
)


def platform_parts() -> PlatformParts:
    """The parts for vLLM's current platform.

    Raises:
        UnsupportedError: neither the CPU nor CUDA (ROCm, XPU, TPU, ...).
    """
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return CPU
    if current_platform.is_cuda():
        return CUDA
    raise UnsupportedError(
        where=f"vLLM platform {current_platform.device_name!r}",
        rule="there are workers and attention backends for vLLM's CPU build and, never run, for CUDA",
        remedy="Install the extra 'cpu' in an environment of its own.",
    )


def usable_parts(*, allow_untested_gpu: bool) -> PlatformParts:
    """The parts for vLLM's current platform, if they may be used.

    Args:
        allow_untested_gpu: the user's word that code may run which nobody has run.

    Raises:
        UnsupportedError: no platform that is served, or CUDA without the user's word.
    """
    parts = platform_parts()
    if parts is CUDA:
        require_untested_gpu_allowed(allow_untested_gpu)
    return parts


def clear_backends() -> None:
    """Give vLLM's registry its own attention backends back."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    for parts in (CPU, CUDA):
        AttentionBackendEnum[parts.attention_backend].clear_override()
