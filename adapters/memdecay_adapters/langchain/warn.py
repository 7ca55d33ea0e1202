"""Warnings that a run shows once: lost tags and inexact templates degrade, they never end a run."""

from __future__ import annotations

import threading
import warnings


class MemDecayWarning(UserWarning):
    """Something degraded: a tag fell back to inference, or the regions of a prompt are approximate."""


_lock = threading.Lock()
_seen: set[tuple[str, ...]] = set()


def warn_once(key: tuple[str, ...], message: str) -> bool:
    """Warn with ``message`` unless ``key`` was warned about before in this process.

    Returns:
        Whether the warning was given.
    """
    with _lock:
        if key in _seen:
            return False
        _seen.add(key)
    warnings.warn(message, MemDecayWarning, stacklevel=3)
    return True


def reset_warnings() -> None:
    """Forget what was warned about, so that it is warned about again (for tests)."""
    with _lock:
        _seen.clear()
