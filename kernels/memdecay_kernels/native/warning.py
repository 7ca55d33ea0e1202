"""The one warning about a missing native library."""

from __future__ import annotations

import warnings


def warn_without_native(reason: str) -> None:
    """Say that the slow path is in use, why, and what to do."""
    warnings.warn(
        f"memdecay_kernels runs its reference implementations, which are slower: {reason}. "
        "Install a C++ compiler and reinstall memdecay-agents, or run `python -m memdecay_kernels.native.build`.",
        RuntimeWarning,
        stacklevel=3,
    )
