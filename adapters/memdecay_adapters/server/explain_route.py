"""``GET /v1/memdecay/explain``: what the cache holds of one of the tenant's own sessions, and why. Changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from memdecay_adapters.server.middleware import TENANT
from memdecay_adapters.server.problems import BAD_REQUEST, problem_body
from memdecay_agents.errors import ExplainError, MemDecayError, PayloadError

MAX_NAME_CHARACTERS = 1024
NOT_FOUND = 404
_NUMBERS = ("message", "page", "token")
_NAMES = ("session", "agent")


def explain_route(backend: Callable[[], Any]) -> Callable[[Request], Awaitable[Response]]:
    """The handler.

    Args:
        backend: gives the running `Backend`, once the server has started.
    """

    async def explain(request: Request) -> Response:
        """Explain a session's message, page or token, or all of its pages."""
        try:
            query = read_query(request.query_params)
        except PayloadError as error:
            return _problem(error, BAD_REQUEST)
        told = await backend().explain(request.scope[TENANT], query)
        if "error" in told:
            return _problem(ExplainError(**told["error"]), NOT_FOUND)
        return JSONResponse(own_names(told))

    return explain


def read_query(given: Mapping[str, str]) -> dict[str, str | int]:
    """The query as plain data.

    Raises:
        PayloadError: an unknown key, a name that is too long, what is no number, or several things asked about.
    """
    query: dict[str, str | int] = {}
    for key, value in given.items():
        if key in _NAMES and len(value) <= MAX_NAME_CHARACTERS:
            query[key] = value
        elif key in _NUMBERS and value.lstrip("-").isascii() and value.lstrip("-").isdigit() and len(value) <= 10:
            query[key] = int(value)
        else:
            raise _refusal(f"{key[:40]}={value[:40]}", "is no name of at most 1024 characters, or no number")
    if len(query.keys() & set(_NUMBERS)) > 1 or "session" not in query:
        raise _refusal("query", "names no session, or more than one thing to explain")
    return query


def own_names(told: dict[str, Any]) -> dict[str, Any]:
    """The answer with the session's key as the client writes it: without the tenant."""
    from memdecay_adapters.server.tenants import OPEN_TENANT
    from memdecay_agents.sessions import SessionId

    return {
        kind: {**found, "session": SessionId.parse(found["session"])._replace(tenant=OPEN_TENANT).key()}
        for kind, found in told.items()
    }


def _refusal(where: str, rule: str) -> PayloadError:
    return PayloadError(
        where=where, rule=rule, remedy="Send ?session=...&agent=...&message=12, or page or token in its place."
    )


def _problem(error: MemDecayError, status: int) -> Response:
    return JSONResponse(problem_body(error, status), status)
