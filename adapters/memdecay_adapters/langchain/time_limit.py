"""A call's timeout, as a field of the model or a keyword of the call."""

from __future__ import annotations

from typing import Any

from memdecay_agents.errors import ConfigError


def check_time_limit(seconds: Any, where: str = "keyword 'timeout' of a chat model call") -> float | None:
    """Read a timeout: a positive number of seconds, or None.

    Raises:
        ConfigError: it is something else.
    """
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):
        raise ConfigError(
            where=where, rule=f"{seconds!r} is no positive number of seconds", remedy="Give one, or None."
        )
    return float(seconds)
