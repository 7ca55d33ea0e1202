"""HTTP to one server, on an event loop in a daemon thread of its own: one client for sync and async callers alike."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import httpx

from memdecay_adapters.server.problems import error_of
from memdecay_agents.errors import EngineError, MemDecayError, RemoteError

T = TypeVar("T")


class Connection:
    """A server's address and key, and the thread that talks to it.

    Args:
        base_url: of the server, with or without a trailing "/v1".
        api_key: sent as a bearer token; None: an open server.
        connect_timeout_seconds: until it accepts a connection.
        read_timeout_seconds: between two pieces of an answer; None: for ever.
        transport: in place of the network, for tests.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        *,
        connect_timeout_seconds: float = 10.0,
        read_timeout_seconds: float | None = 600.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._pid = os.getpid()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._make_client: Callable[[], httpx.AsyncClient] = lambda: httpx.AsyncClient(
            base_url=self.base_url,
            headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
            timeout=httpx.Timeout(read_timeout_seconds, connect=connect_timeout_seconds),
            limits=httpx.Limits(max_connections=None),
            transport=transport,
        )
        self._client: httpx.AsyncClient | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="memdecay-remote", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or this is a process forked off."""
        return self._closed or os.getpid() != self._pid

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the thread's loop; returns at once.

        Raises:
            EngineError: the connection is closed, or was carried over a fork.
        """
        if self.closed:
            coroutine.close()
            raise EngineError(
                where=f"connection to {self.base_url}",
                rule="it is closed" if self._closed else "it was opened before this process was forked off",
                remedy="Make another RemoteEngine.",
            )
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def request(self, method: str, route: str, **options: Any) -> Any:
        """One request, waited for; returns the parsed answer.

        Raises:
            MemDecayError: what the server says is wrong.
            RemoteError: it cannot be reached, or its answer is no JSON.
        """
        return self.start(self._request(method, route, **options)).result()

    async def _request(self, method: str, route: str, **options: Any) -> Any:
        try:
            answer = await self.client.request(method, route, **options)
        except httpx.HTTPError as error:
            raise self.unreachable(error) from error
        return await self.read(answer, route)

    async def read(self, answer: httpx.Response, route: str) -> Any:
        """The parsed body of an answer.

        Raises:
            MemDecayError: see `request`.
        """
        await answer.aread()
        try:
            body = answer.json()
        except ValueError:
            body = None
        if answer.is_success and body is not None:
            return body
        raise self.problem(body, route, answer.status_code)

    def problem(self, body: object, route: str, status: int | None = None) -> MemDecayError:
        """The error that an answer tells of; see `error_of`."""
        return error_of(body, f"{self.base_url}{route}", status)

    def unreachable(self, error: Exception) -> RemoteError:
        """The error of a connection that failed."""
        return RemoteError(
            where=self.base_url,
            rule=f"it cannot be reached ({type(error).__name__}{f': {error}' if str(error) else ''})",
            remedy="Check the address, and that `memdecay serve` runs there.",
        )

    @property
    def client(self) -> httpx.AsyncClient:
        """The client; used on the thread's loop only."""
        if self._client is None:
            self._client = self._make_client()
        return self._client

    def close(self) -> None:
        """Cancel what runs and end the thread; idempotent. Does nothing in a process forked off."""
        if self.closed:
            return
        self._closed = True
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()
