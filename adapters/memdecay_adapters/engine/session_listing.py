"""A tenant's sessions as plain data, for whoever looks from outside the engine core."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from memdecay_agents.pages import build_page_view
from memdecay_agents.session_state import SessionState
from memdecay_agents.sessions import SessionId

if TYPE_CHECKING:
    from memdecay_adapters.engine.controller import EvictionController


def list_sessions(controller: EvictionController, tenant: str) -> list[dict[str, Any]]:
    """The tenant's sessions that hold pages: running ones first, then idle ones, least recently used first.

    Args:
        controller: asked between two steps.
        tenant: whose sessions; no other's are looked at.

    Returns:
        One mapping of JSON types each: ``session`` (thread and branch as hints write them), ``agent``, ``state``
        ("running" or "idle"), ``idle_seconds`` (None while running), ``tokens`` (computed, evicted ones included),
        ``page_size_tokens``, ``pages_held``, ``pages_held_by_region`` and ``budget_pages`` (None: no budget).
    """
    controller.expire()
    return [described for _, described in describe_sessions(controller, tenant)]


def describe_sessions(
    controller: EvictionController, tenant: str | None
) -> Iterator[tuple[SessionState, dict[str, Any]]]:
    """States and descriptions, as `list_sessions` gives them, of a tenant's sessions or of all (None)."""
    for _, tracked, state in controller.running():
        if tenant in (None, tracked.home.tenant):
            yield state, _describe(tracked.home, state, state.held_pages, None)
    for session in controller.sessions:
        if tenant in (None, session.home.tenant):
            idle_seconds = controller.sessions.idle_seconds(session)
            yield session.state, _describe(session.home, session.state, session.held_pages, idle_seconds)


def _describe(
    home: SessionId, state: SessionState, held_pages: Sequence[int], idle_seconds: float | None
) -> dict[str, Any]:
    tokens, held = state.tokens, np.asarray(held_pages, dtype=np.int64)
    view = build_page_view(tokens, held, tokens.computed_tokens, state.config)
    regions = Counter(tokens.table.names[index] for index in view.page_region.tolist())
    return {
        "session": home.hint_session,
        "agent": home.agent_path,
        "state": "running" if idle_seconds is None else "idle",
        "idle_seconds": idle_seconds,
        "tokens": tokens.computed_tokens,
        "page_size_tokens": state.config.page_size_tokens,
        "pages_held": len(held_pages),
        "pages_held_by_region": dict(regions),
        "budget_pages": state.budget_pages,
    }
