"""The gate in front of vLLM's routes, as ASGI middleware inside vLLM's own authentication: 401 comes before 400."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memdecay_adapters.server.gate import READING_METHODS, check_body, refuse_route
from memdecay_adapters.server.limits import ServerLimits
from memdecay_adapters.server.problems import BAD_REQUEST, FORBIDDEN, TOO_LARGE, problem_body
from memdecay_adapters.server.strict_json import MAX_BODY_BYTES
from memdecay_adapters.server.tenants import Tenants
from memdecay_adapters.server.wire import PREFIX
from memdecay_agents.errors import MemDecayError, PayloadError

TENANT = "memdecay_tenant"
"""Key of the request's tenant in its ASGI scope."""


class GateMiddleware:
    """Refuses what may not reach vLLM, and says whose each request is.

    Args:
        app: what is behind the gate.
        tenants: of this server.
        limits: gives the server's limits, once it has started.
    """

    def __init__(self, app: ASGIApp, tenants: Tenants, limits: Callable[[], ServerLimits]) -> None:
        self.app = app
        self.tenants = tenants
        self.limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "websocket" and self.tenants.are_told_apart:
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method, path = scope["method"], scope["path"].removeprefix(scope.get("root_path", ""))
        tenant = self.tenants.of(Headers(scope=scope).get("authorization"))
        scope[TENANT] = tenant
        if (refusal := refuse_route(method, path, self.tenants.are_told_apart)) is not None:
            await JSONResponse(problem_body(refusal, FORBIDDEN), FORBIDDEN)(scope, receive, send)
            return
        if method in READING_METHODS:
            await self.app(scope, receive, send)
            return
        status = TOO_LARGE
        try:
            body = await _whole_body(receive)
            if body is None:
                return  # the client has left
            status = BAD_REQUEST
            if not path.startswith(f"{PREFIX}/"):
                body = check_body(path, body, tenant, self.limits())
        except MemDecayError as error:
            await JSONResponse(problem_body(error, status), status)(scope, receive, send)
            return
        await self.app(_with_length(scope, len(body)), _replay(body, receive), send)


async def _whole_body(receive: Receive) -> bytes | None:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            raise PayloadError(
                where="request body", rule=f"more than {MAX_BODY_BYTES} bytes", remedy="Send a smaller request."
            )
        if not message.get("more_body", False):
            return b"".join(parts)


def _with_length(scope: Scope, length: int) -> Scope:
    headers = [
        (name, value) for name, value in scope["headers"] if name not in (b"content-length", b"transfer-encoding")
    ]
    return {**scope, "headers": [*headers, (b"content-length", str(length).encode())]}


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once more, then what comes after it: the client's leaving."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Any:
        return messages.pop() if messages else await receive()

    return next_message
