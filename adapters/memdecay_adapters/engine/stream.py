"""The caller's end of a request: an iterator, sync and async, over what the engine thread produces."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator

from memdecay_adapters.engine.results import GenerationChunk, GenerationResult
from memdecay_agents.errors import TimeLimitError


class RequestStream:
    """Chunks of one request as they come, then its result.

    Any thread may read it, and any event loop; chunks go to whoever asks first. Cancelling a coroutine
    that waits here aborts the request, and so does leaving an async iteration early.
    """

    def __init__(self, request_id: str, abort: Callable[[str], None]) -> None:
        self.request_id = request_id
        self._abort = abort
        self._condition = threading.Condition()
        self._chunks: deque[GenerationChunk] = deque()
        self._result: GenerationResult | None = None
        self._error: BaseException | None = None
        self._wakers: list[Callable[[], None]] = []
        self._limit_seconds: float | None = None
        self._deadline: float | None = None

    # ---- the engine thread's end

    def put(self, chunk: GenerationChunk) -> None:
        """Hand over a chunk."""
        self._change(lambda: self._chunks.append(chunk))

    def finish(self, result: GenerationResult) -> None:
        """End the stream with its result."""

        def end() -> None:
            self._result = result

        self._change(end)

    def fail(self, error: BaseException) -> None:
        """End the stream with an error, raised to every reader; a finished stream stays finished."""

        def end() -> None:
            if self._result is None:
                self._error = error

        self._change(end)

    def _change(self, change: Callable[[], object]) -> None:
        with self._condition:
            change()
            wakers, self._wakers = self._wakers, []
            self._condition.notify_all()
        for wake in wakers:
            wake()

    # ---- the caller's end

    @property
    def done(self) -> bool:
        """Whether the request has ended."""
        with self._condition:
            return self._result is not None or self._error is not None

    def abort(self) -> None:
        """Stop the request; its result then says ``finish_reason="abort"``."""
        if not self.done:
            self._abort(self.request_id)

    def limit(self, seconds: float | None) -> None:
        """Give the request so many seconds from now; None: as long as it takes.

        Whoever waits for it after that gets a `TimeLimitError`, and the request is aborted.
        """
        self._limit_seconds = seconds
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def result(self, timeout_seconds: float | None = None) -> GenerationResult:
        """Wait for the end.

        Raises:
            TimeoutError: it has not come within ``timeout_seconds``; the request goes on.
            TimeLimitError: the request's own limit has passed.
            MemDecayError: the engine closed or failed.
        """
        with self._condition:
            remaining = self._remaining()
            shortest = min((s for s in (timeout_seconds, remaining) if s is not None), default=None)
            ended = self._condition.wait_for(lambda: self._result or self._error, shortest)
        if ended:
            return self._ended()
        if shortest == remaining:
            self._expire()
        raise TimeoutError(f"request {self.request_id} has not ended within {timeout_seconds} s")

    def __iter__(self) -> Iterator[GenerationChunk]:
        while True:
            with self._condition:
                ready = self._condition.wait_for(
                    lambda: bool(self._chunks or self._result or self._error), self._remaining()
                )
                chunk = self._chunks.popleft() if self._chunks else None
            if not ready:
                self._expire()
            if chunk is None:
                self._ended()
                return
            yield chunk

    async def aresult(self) -> GenerationResult:
        """Wait for the end without blocking the event loop; cancelling this aborts the request."""
        try:
            while not self.done:
                await self._changed(lambda: self._result is not None or self._error is not None)
        except asyncio.CancelledError:
            self.abort()
            raise
        return self._ended()

    async def __aiter__(self) -> AsyncIterator[GenerationChunk]:
        try:
            while True:
                await self._changed(lambda: bool(self._chunks or self._result or self._error))
                with self._condition:
                    if not self._chunks:
                        self._ended()
                        return
                    chunk = self._chunks.popleft()
                yield chunk
        finally:
            self.abort()  # does nothing once the request has ended

    async def _changed(self, ready: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop closed: nobody waits there any more
                loop.call_soon_threadsafe(changed.set)

        with self._condition:
            if ready():
                return
            self._wakers.append(wake)
        try:
            await asyncio.wait_for(changed.wait(), self._remaining())
        except TimeoutError:
            self._expire()

    def _remaining(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _expire(self) -> None:
        self.abort()
        raise TimeLimitError(
            where=f"request {self.request_id}",
            rule=f"it has not ended within its {self._limit_seconds} seconds, and was aborted",
            remedy="Raise the timeout, lower max_tokens, or ask for less at once.",
        )

    def _ended(self) -> GenerationResult:
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result
