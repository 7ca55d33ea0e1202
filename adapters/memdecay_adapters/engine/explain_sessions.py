"""Explanations of an engine's sessions: found by name, made between two steps, handed out as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memdecay_agents.errors import ExplainError
from memdecay_agents.explaining import explain_entries, explain_session
from memdecay_agents.explanation import SessionExplanation
from memdecay_agents.session_state import SessionState
from memdecay_agents.sessions import SessionId

if TYPE_CHECKING:
    from memdecay_adapters.engine.controller import EvictionController


def explain(
    controller: EvictionController,
    session: SessionId,
    *,
    message: int | None = None,
    page: int | None = None,
    token: int | None = None,
) -> SessionExplanation:
    """Explain a session's pages; of one that holds nothing any more what the ledger still knows.

    Args:
        controller: asked between two steps.
        session: as requests name it, or the exact one of a retention summary.
        message: only the pages of this message; likewise ``page`` and ``token``; none of them: all pages.

    Raises:
        ExplainError: nothing is known of the session, or it has no such message, page or token.
    """
    for state, held in _living(controller, session):
        away = () if controller.tier is None else controller.tier.catalogue.away(state.key)
        on_host = {one.page for one in away}
        return explain_session(state, held, message=message, page=page, token=token, host_pages=on_host)
    entries = controller.ledger.moves(session.key())
    if not entries:
        raise ExplainError(
            where=f"session '{session.hint_session}' of agent '{session.agent_path}'",
            rule="it holds no pages, and the ledger knows of none that were freed",
            remedy="Name a session that was asked in this engine, and is not closed; the agent's name is part of it.",
        )
    return explain_entries(entries)


def explain_for_tenant(controller: EvictionController, tenant: str, query: Mapping[str, Any]) -> dict[str, Any]:
    """The same over a server, as JSON types.

    Args:
        controller: asked between two steps.
        tenant: whose sessions; no other's are looked at.
        query: ``session`` (thread and branch as hints write them), ``agent``, and one of ``message``, ``page`` and
            ``token``, or none of them.

    Returns:
        ``explanation`` of what was asked about, or ``session_explanation`` of the whole session; or ``error``, with
        the parts of an error of ours. Nothing is raised.
    """
    asked = {name: query[name] for name in ("message", "page", "token") if query.get(name) is not None}
    try:
        home = SessionId.from_hints(tenant, str(query.get("session", "")), str(query.get("agent", "")))
        whole = explain(controller, home, **asked)
        if not asked:
            return {"session_explanation": whole.model_dump(mode="json")}
        return {"explanation": whole.of(**asked).model_dump(mode="json")}
    except ExplainError as error:
        return {"error": {"where": error.where, "rule": error.rule, "remedy": error.remedy}}


def _living(controller: EvictionController, session: SessionId) -> Iterator[tuple[SessionState, Sequence[int]]]:
    """Sessions of that name that hold pages: running ones, then idle ones, the last used first."""
    for _, tracked, state in controller.running():
        if session in (tracked.home, state.session_id):
            yield state, state.held_pages
    for idle in reversed(list(controller.sessions)):
        if session in (idle.home, idle.state.session_id):
            yield idle.state, idle.held_pages
