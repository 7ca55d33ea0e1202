"""Fail closed at start-up where a part of vLLM that is touched without an official hook has changed."""

from __future__ import annotations

from collections.abc import Iterable

from memdecay_adapters.engine.versions import SUPPORTED_VLLM
from memdecay_agents.errors import UnsupportedError


def require_attributes(owner: object, name: str, paths: Iterable[str]) -> None:
    """Check that an object has all attributes that will be used.

    Args:
        owner: one of vLLM's objects, as it will be used.
        name: what to call it in the message.
        paths: dotted attribute paths from it.

    Raises:
        UnsupportedError: one is missing.
    """
    for path in paths:
        found = owner
        for part in path.split("."):
            if not hasattr(found, part):
                raise UnsupportedError(
                    where=f"{name} ({type(owner).__name__})",
                    rule=f"it has no attribute {path!r}, which it has in vLLM {'.'.join(map(str, SUPPORTED_VLLM))}",
                    remedy="Install the vLLM version that memdecay-agents names, unmodified.",
                )
            found = getattr(found, part)
