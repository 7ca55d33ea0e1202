"""The routes under /v1/memdecay: what this server is, generating within a session, and a tenant's sessions."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from memdecay_adapters.engine.core_methods import TAKE_SUMMARY
from memdecay_adapters.server.backend import Backend, FinalOutput
from memdecay_adapters.server.gate import CheckedCall, check_call
from memdecay_adapters.server.middleware import TENANT
from memdecay_adapters.server.problems import BAD_REQUEST, FAULT, problem_body
from memdecay_adapters.server.tenants import OPEN_TENANT
from memdecay_adapters.server.wire import chunk_event
from memdecay_agents.errors import EngineError, MemDecayError, PayloadError
from memdecay_agents.sessions import SessionId

MAX_THREAD_CHARACTERS = 1024


class Routes:
    """The handlers; each reads its tenant from the scope, where the gate has put it.

    Args:
        backend: gives the running engine, once the server has started.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    async def info(self, request: Request) -> Response:
        """What a client must know before it renders a prompt."""
        return JSONResponse(self._engine().info)

    async def sessions(self, request: Request) -> Response:
        """The tenant's sessions that hold pages; see `list_sessions`."""
        return JSONResponse({"sessions": await self._engine().sessions(request.scope[TENANT])})

    async def snapshot(self, request: Request) -> Response:
        """What the tenant's sessions hold and do now; see `EngineSnapshot`."""
        return JSONResponse(await self._engine().snapshot(request.scope[TENANT]), headers={"Cache-Control": "no-store"})

    async def close_sessions(self, request: Request) -> Response:
        """Give up the tenant's idle sessions: of ``?thread_id=``, or with ``?all=true`` all of them."""
        thread_id, everything = request.query_params.get("thread_id"), request.query_params.get("all") == "true"
        if (thread_id is None) != everything or len(thread_id or "") > MAX_THREAD_CHARACTERS:
            return _problem(
                PayloadError(
                    where="query",
                    rule="names no thread, or both a thread and all of them",
                    remedy="Send ?thread_id=... (at most 1024 characters) or ?all=true.",
                )
            )
        return JSONResponse({"closed": await self._engine().close_sessions(request.scope[TENANT], thread_id)})

    async def generate(self, request: Request) -> Response:
        """Serve one turn; the answer is a stream of events, as `wire` describes them."""
        engine = self._engine()
        try:
            call = check_call(await request.body(), request.scope[TENANT], engine.limits)
        except MemDecayError as error:
            return _problem(error)
        turn = Turn(engine, call)
        try:
            first = await _unless_left(request, turn.first())
        except PayloadError as error:
            return _problem(error)
        except EngineError as error:
            return _problem(error, FAULT)
        if first is None:
            await turn.close()
            return Response(status_code=499)
        return StreamingResponse(turn.events(first), media_type="text/event-stream")

    def _engine(self) -> Backend:
        engine: Backend = self._backend()
        return engine


class Turn:
    """One request on its way through the engine. Closing it, or leaving its events early, aborts it."""

    def __init__(self, engine: Backend, call: CheckedCall) -> None:
        self._engine = engine
        self._call = call
        self._id = f"memdecay-{uuid.uuid4().hex}"
        self._outputs = engine.generate(self._id, call)

    async def first(self) -> Any:
        """The first output.

        Raises:
            PayloadError: vLLM refuses the request for a reason of its own.
            EngineError: the engine has ended.
        """
        try:
            return await anext(self._outputs)
        except StopAsyncIteration:
            raise EngineError(
                where="engine", rule="it ended the request without an output", remedy="Send it again."
            ) from None

    async def close(self) -> None:
        """Abort the request."""
        await self._outputs.aclose()

    async def events(self, first: Any) -> AsyncIterator[bytes]:
        """Server-sent events from the first output on."""
        output = first
        try:
            while True:
                if output.token_ids or output.text:
                    yield _event(chunk_event(output.text, output.token_ids, output.logprobs))
                if output.final is not None:
                    yield _event({"finished": await self._about(output.final)})
                    return
                output = await anext(self._outputs)
        except (MemDecayError, StopAsyncIteration) as error:
            told = error if isinstance(error, MemDecayError) else _broke_off()
            yield _event(problem_body(told, FAULT))
        finally:
            await self._outputs.aclose()

    async def _about(self, final: FinalOutput) -> dict[str, Any]:
        retention = final.retention
        if retention is None:  # it ended in the front end, and the core has not been asked
            retention = await self._engine.call(TAKE_SUMMARY, self._id)
        if retention is not None:
            own = SessionId.parse(retention["session"])._replace(tenant=OPEN_TENANT)  # as the client names it
            retention = {**retention, "session": own.key()}
        return {**final._asdict(), "retention": retention}


async def _unless_left(request: Request, coroutine: Any) -> Any:
    """Await; None, and the coroutine cancelled, once the client has left."""
    work = asyncio.ensure_future(coroutine)
    left = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
        return await work if work.done() else None
    finally:
        for task in (work, left):
            task.cancel()
        await asyncio.gather(work, left, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _broke_off() -> EngineError:
    return EngineError(where="engine", rule="the request broke off", remedy="Send it again.")


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=True).encode() + b"\n\n"


def _problem(error: MemDecayError, status: int = BAD_REQUEST) -> Response:
    return JSONResponse(problem_body(error, status), status)
