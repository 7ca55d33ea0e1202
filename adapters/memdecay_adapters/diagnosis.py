"""What `memdecay doctor` looks at, without starting an engine."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from memdecay_adapters.engine.versions import require_supported_vllm
from memdecay_adapters.model_check import attention_facts, read_config, refusal_of
from memdecay_adapters.models import resolve_model
from memdecay_agents.errors import MemDecayError

MINIMUM_MEMORY_BYTES = 6 * 2**30
MINIMUM_PYTHON = (3, 11)


@dataclass(frozen=True)
class Finding:
    """One check's outcome."""

    check: str
    status: Literal["ok", "warning", "failed"]
    found: str
    remedy: str = ""


def run_checks(model: str | None) -> list[Finding]:
    """Run all checks; none raises."""
    checks: list[Callable[[], Finding]] = [
        _python, _vllm, _compiler, _torch, _kernels, _page_size, _memory, _threads, _openmp,
    ]  # fmt: skip
    found = [_guarded(check.__name__.strip("_").replace("_", " "), check) for check in checks]
    resolved = _guarded("model", lambda: Finding("model", "ok", resolve_model(model)))
    if resolved.status != "ok":
        return [*found, resolved]
    config = _read_config(resolved.found)
    return [
        *found,
        resolved,
        _guarded("attention", lambda: _attention(config)),
        _guarded("kv cache", lambda: _kv_cache(config)),
    ]


def _read_config(model: str) -> dict[str, Any] | None:
    try:
        return read_config(model)
    except (ImportError, OSError, ValueError):  # what is garbled is told by the model's own check, or by vLLM
        return None


def _guarded(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except MemDecayError as error:
        return Finding(name, "failed", f"{error.where}: {error.rule}", error.remedy)
    except ImportError as error:
        return Finding(name, "failed", str(error), "Install the extra 'cpu' or 'gpu'.")


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < MINIMUM_PYTHON:
        return Finding("python", "failed", version, f"Use Python {'.'.join(map(str, MINIMUM_PYTHON))} or newer.")
    return Finding("python", "ok", version)


def _vllm() -> Finding:
    return Finding("vllm", "ok", require_supported_vllm())


def _compiler() -> Finding:
    found = next((path for name in ("c++", "g++") if (path := shutil.which(name))), None)
    if found is None:
        return Finding("compiler", "warning", "no C++ compiler", "vLLM compiles on demand: install g++.")
    return Finding("compiler", "ok", found)


def _torch() -> Finding:
    import torch

    features = [
        name
        for name, present in {
            "AMX": torch.cpu._is_amx_tile_supported(),
            "AVX-512": torch.cpu._is_avx512_supported(),
            "AVX2": torch.cpu._is_avx2_supported(),
            "CUDA": torch.cuda.is_available(),
        }.items()
        if present
    ]
    if torch.cuda.is_available():
        return Finding("backend", "warning", f"torch {torch.__version__} with CUDA",
                       "The CUDA worker was never run: use the extra 'cpu', or allow_untested_gpu=True.")  # fmt: skip
    return Finding("backend", "ok", f"torch {torch.__version__}, {', '.join(features) or 'baseline'}")


def _kernels() -> Finding:
    from memdecay_kernels import implementation_name

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            name = implementation_name()
        except ValueError as error:
            return Finding("kernels", "failed", str(error), "Unset MEMDECAY_KERNELS, or name one that runs here.")
    if name == "reference" and os.environ.get("MEMDECAY_KERNELS") != "reference":
        reason = str(said[0].message) if said else "the native library was not built"
        return Finding("kernels", "warning", f"torch and numpy: {reason}", "Install g++ and reinstall memdecay-agents.")
    return Finding("kernels", "ok", name)


def _page_size() -> Finding:
    import torch

    size = 32 if torch.cpu._is_amx_tile_supported() else 16
    return Finding("page size", "ok", f"{size} tokens in bfloat16, 16 in float32, unless set")


def _memory() -> Finding:
    available = available_memory_bytes()
    found = f"{available / 2**30:.1f} GiB available"
    if available < MINIMUM_MEMORY_BYTES:
        return Finding(
            "memory", "warning", found, "The demo wants 6 GiB: close something, or lower kv_cache_memory_bytes."
        )
    return Finding("memory", "ok", found)


def _threads() -> Finding:
    cores, wanted = len(os.sched_getaffinity(0)), os.environ.get("OMP_NUM_THREADS")
    if wanted is None:
        return Finding("threads", "ok", f"OMP_NUM_THREADS unset: {cores} threads, one a core")
    if wanted.isdigit() and int(wanted) > cores:
        return Finding("threads", "warning", f"OMP_NUM_THREADS={wanted} on {cores} cores",
                       f"Threads that wait for a core spin: set OMP_NUM_THREADS={cores}.")  # fmt: skip
    return Finding("threads", "ok", f"OMP_NUM_THREADS={wanted} of {cores} cores")


def _openmp() -> Finding:
    import torch

    if not torch.backends.openmp.is_available():  # type: ignore[no-untyped-call]
        return Finding("openmp", "warning", "this torch has none: one thread", "Install a torch that is built with it.")
    binding = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "auto")
    found = f"{torch.get_num_threads()} threads, bound: {binding}"
    cores = os.sched_getaffinity(0)
    if binding not in ("auto", "nobind") and (beyond := _cores_of(binding) - cores):
        shown = ",".join(map(str, sorted(beyond)[:4]))
        return Finding("openmp", "failed", f"{found}; cores {shown} are not this process's",
                       "Unset VLLM_CPU_OMP_THREADS_BIND, or name cores of `taskset -p $$`.")  # fmt: skip
    if os.environ.get("OMP_WAIT_POLICY", "").lower() == "active" and len(cores) < 4:
        return Finding("openmp", "warning", f"{found}; OMP_WAIT_POLICY=active",
                       "Waiting threads take the cores from the scheduler: unset OMP_WAIT_POLICY.")  # fmt: skip
    return Finding("openmp", "ok", found)


def _cores_of(binding: str) -> set[int]:
    """Cores that ``0-3,8|4-7`` names; what is no number names none."""
    found: set[int] = set()
    for part in binding.replace("|", ",").split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and (last or first).isdigit():
            found |= set(range(int(first), int(last or first) + 1))
    return found


def _attention(config: dict[str, Any] | None) -> Finding:
    if config is None:
        return Finding("attention", "warning", "the model is not on this machine yet",
                       "vLLM will fetch it and check it when the engine starts.")  # fmt: skip
    if (refusal := refusal_of(config)) is not None:
        return Finding("attention", "failed", refusal[0], refusal[1])
    facts = attention_facts(config)
    if facts is None:
        return Finding("attention", "warning", "its config.json does not say", "The engine checks it when it starts.")
    heads = f"{facts.layers} layers, {facts.query_heads} query and {facts.key_heads} key heads of {facts.head_dim}"
    return Finding("attention", "ok", f"full attention, {heads}")


def _kv_cache(config: dict[str, Any] | None) -> Finding:
    facts = attention_facts(config) if config is not None else None
    if facts is None:
        return Finding("kv cache", "warning", "unknown", "The engine tells its pages when it starts.")
    tokens = available_memory_bytes() // max(facts.cache_bytes_per_token, 1)
    found = (
        f"{facts.dtype}, {facts.cache_bytes_per_token / 1024:.1f} KiB a token; what is available holds "
        f"about {tokens:,} tokens, weights aside"
    )
    if facts.max_tokens is not None and tokens < facts.max_tokens:
        return Finding("kv cache", "warning", f"{found}, fewer than the model's {facts.max_tokens:,}",
                       "Set max_model_len, or free memory.")  # fmt: skip
    return Finding("kv cache", "ok", found)


def available_memory_bytes() -> int:
    """Memory that can be had without swapping, page cache included."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            line = next(line for line in file if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
