"""The most memory that this process has held."""

from __future__ import annotations

import resource
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak_rss_bytes() -> int:
    """The highest resident set of this program.

    Not of the one that started it: Linux keeps ``ru_maxrss`` across exec, so that a small program which a large one
    started seems large. ``VmHWM`` begins anew.
    """
    try:
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(line.split()[1]) * 1024
