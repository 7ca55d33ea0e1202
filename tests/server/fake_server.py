"""Our routes and gate over a backend without a model, served by a real HTTP server in a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from memdecay_adapters.engine.core_methods import TAKE_SUMMARY
from memdecay_adapters.engine.explain_sessions import explain_for_tenant
from memdecay_adapters.engine.results import RetentionSummary
from memdecay_adapters.server.backend import FinalOutput, Output
from memdecay_adapters.server.explain_route import explain_route
from memdecay_adapters.server.gate import CheckedCall
from memdecay_adapters.server.limits import ServerLimits
from memdecay_adapters.server.middleware import GateMiddleware
from memdecay_adapters.server.routes import Routes
from memdecay_adapters.server.tenants import Tenants
from memdecay_adapters.server.wire import EXPLAIN, GENERATE, INFO, PROTOCOL, SESSIONS, SNAPSHOT
from memdecay_agents import Ledger
from tests.server.limits_for_tests import LIMITS

KEY = "key-of-one"
"""The API key of a server that has one."""


def connection_threads() -> set[threading.Thread]:
    """Of all clients in this process, those that other tests left open among them: compare before and after."""
    return {thread for thread in threading.enumerate() if thread.name == "memdecay-remote"}


def summary(call: CheckedCall) -> dict[str, Any]:
    """A retention summary as the engine core gives it."""
    hints = call.hints
    return asdict(
        RetentionSummary(
            session=hints.session_id.key(), request_id="internal", agent=hints.agent, turn=hints.turn,
            policy="memdecay", page_size_tokens=16, budget_pages=20, guaranteed_pages=20, budget_bound=True,
            continued_tokens=0, rewound_tokens=0, divergent_region=None, pages_held=2, pages_total=3,
            peak_pages_prefill=3, peak_pages_decode=2, evictions=1, shortfall_pages=0, freed_by_region={"user": 1},
            page_runs=((0, 2, "user", True), (2, 3, "user", False)),
        )
    )  # fmt: skip


class FakeBackend:
    """Answers with ``pieces``, one engine step each.

    Attributes:
        fault: raised before the first output, or after it with ``fault_late``.
        hang: never ends by itself.
        in_front: ends as a stop string does: the core's summary has to be asked for.
    """

    def __init__(self, *pieces: str, limits: ServerLimits = LIMITS, fingerprint: str = "") -> None:
        self.pieces: Sequence[str] = pieces or ("Hello", " there")
        self.limits = limits
        self.info: dict[str, Any] = {
            "protocol": PROTOCOL, "vllm": "0.32.0", "model": "fake", "max_model_len": limits.max_model_len,
            "dtype": "float32", "config": limits.config.model_dump(mode="json"), "tokenizer": fingerprint,
        }  # fmt: skip
        self.calls: list[CheckedCall] = []
        self.asked: list[tuple[Any, ...]] = []
        self.aborted = threading.Event()
        self.controller: Any = SimpleNamespace(running=list, sessions=[], ledger=Ledger(), tier=None)
        self.fault: Exception | None = None
        self.fault_late = self.hang = self.in_front = False

    async def generate(self, request_id: str, call: CheckedCall) -> AsyncGenerator[Output, None]:
        self.calls.append(call)
        ended = False
        try:
            if self.fault is not None and not self.fault_late:
                raise self.fault
            for number, piece in enumerate(self.pieces):
                last = number == len(self.pieces) - 1 and not self.hang
                final = self._final(call) if last else None
                ended = last
                yield Output(piece, [number], None, final)
                if self.fault is not None:
                    raise self.fault
            if self.hang:
                await asyncio.Event().wait()
        finally:
            if not ended:
                self.aborted.set()

    def _final(self, call: CheckedCall) -> FinalOutput:
        retention = None if self.in_front else summary(call)
        return FinalOutput("stop", None, len(call.prompt_token_ids), 16, retention)

    async def call(self, method: str, *arguments: Any) -> Any:
        self.asked.append((method, *arguments))
        return summary(self.calls[-1]) if method == TAKE_SUMMARY else None

    async def sessions(self, tenant: str) -> Any:
        return [
            {
                "session": "t", "agent": tenant, "state": "idle", "idle_seconds": 1.5, "tokens": 40,
                "page_size_tokens": 16, "pages_held": 2, "pages_held_by_region": {"user": 2}, "budget_pages": None,
            }
        ]  # fmt: skip

    async def snapshot(self, tenant: str) -> Any:
        return {"tenant": tenant}

    async def explain(self, tenant: str, query: Mapping[str, Any]) -> Any:
        self.asked.append((tenant, dict(query)))
        return explain_for_tenant(self.controller, tenant, query)

    async def close_sessions(self, tenant: str, thread_id: str | None) -> Any:
        self.asked.append((tenant, thread_id))
        return 1


async def echo(request: Request) -> Any:
    """Stands for vLLM's own routes: says what got through the gate."""
    body = await request.body()
    length = request.headers.get("content-length")
    return JSONResponse({"body": body.decode(), "length": length, "tenant": request.scope["memdecay_tenant"]})


def fake_app(backend: FakeBackend, keys: Sequence[str] = ()) -> Starlette:
    """The application: our routes, and a few of vLLM's that echo."""
    routes = Routes(lambda: backend)
    app = Starlette(
        routes=[
            Route(INFO, routes.info, methods=["GET"]),
            Route(GENERATE, routes.generate, methods=["POST"]),
            Route(SESSIONS, routes.sessions, methods=["GET"]),
            Route(SNAPSHOT, routes.snapshot, methods=["GET"]),
            Route(EXPLAIN, explain_route(lambda: backend), methods=["GET"]),
            Route(SESSIONS, routes.close_sessions, methods=["DELETE"]),
            Route("/{path:path}", echo, methods=["GET", "POST"]),
        ]
    )
    app.add_middleware(GateMiddleware, tenants=Tenants(list(keys), b"secret"), limits=lambda: backend.limits)
    return app


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve an application on a free port; gives its address."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()  # the socket listens already: who comes early waits in its queue
    listener.listen(64)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(timeout=20)
