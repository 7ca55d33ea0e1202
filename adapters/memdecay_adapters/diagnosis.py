"""What `memdecay doctor` looks at, without starting an engine."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from memdecay_adapters.engine.versions import require_supported_vllm
from memdecay_adapters.models import resolve_model
from memdecay_agents.errors import MemDecayError

MINIMUM_MEMORY_BYTES = 6 * 2**30


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
        _python, _vllm, _compiler, _torch, _kernels, _page_size, _memory, _threads, lambda: _model(model)
    ]  # fmt: skip
    return [_guarded(check) for check in checks]


def _guarded(check: Callable[[], Finding]) -> Finding:
    name = check.__name__.strip("_").replace("<lambda>", "model")
    try:
        return check()
    except MemDecayError as error:
        return Finding(name, "failed", f"{error.where}: {error.rule}", error.remedy)
    except ImportError as error:
        return Finding(name, "failed", str(error), "Install the extra 'cpu' or 'gpu'.")


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", "ok", version)


def _vllm() -> Finding:
    return Finding("vllm", "ok", require_supported_vllm())


def _compiler() -> Finding:
    found = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
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
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = f"{available / 2**30:.1f} GiB free"
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


def _model(model: str | None) -> Finding:
    return Finding("model", "ok", resolve_model(model))
