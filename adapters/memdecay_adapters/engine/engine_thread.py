"""The one thread that owns vLLM: it takes commands, steps the engine and feeds the streams."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from memdecay_adapters.engine.refusals import own_refusal
from memdecay_adapters.engine.results import GenerationChunk, GenerationResult, RetentionSummary
from memdecay_adapters.engine.stream import RequestStream
from memdecay_agents.errors import EngineError

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine

logger = logging.getLogger(__name__)
T = TypeVar("T")


LONGEST_WAIT_SECONDS = 3600.0
"""Between two looks at what is due while nothing runs; a queue cannot wait for ever and a day."""


class _Command(NamedTuple):
    run: Callable[[], None]
    refuse: Callable[[BaseException], None]


@dataclass
class _Running:
    stream: RequestStream
    internal_id: str
    prompt_tokens: int
    started: float
    first_token: float | None = None
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] | None = None


class EngineThread:
    """Runs an `LLMEngine` on a thread of its own, for callers on any thread and event loop."""

    def __init__(self, build: Callable[[], LLMEngine], shut_down: Callable[[LLMEngine], None]) -> None:
        """Start the thread and build the engine on it; errors of the build are raised here."""
        self.pid = os.getpid()
        self._build = build
        self._shut_down = shut_down
        self._commands: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._running: dict[str, _Running] = {}
        self._started: Future[LLMEngine] = Future()
        self._failure: BaseException | None = None
        self.take_summary: Callable[[str], RetentionSummary | None] = lambda internal_id: None
        """Where an ended request's retention summary is fetched: vLLM's output has none after a stop string."""
        self.on_idle: Callable[[], float | None] = lambda: None
        """Called whenever nothing runs and nothing is asked; returns after how many seconds to call it again. It may
        add requests of the engine's own, whose output nobody reads."""
        self._closing = False
        self._lock = threading.RLock()  # request_close may be called by the garbage collector, inside _send
        self._thread = threading.Thread(target=self._main, name="memdecay-engine", daemon=True)
        self._thread.start()
        self.engine = self._started.result()

    # ---- from any thread

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the engine thread, between two steps, and return its result."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        if threading.current_thread() is self._thread:
            run()
        else:
            self._send(_Command(run, future.set_exception))
        return future.result()

    def add(
        self,
        stream: RequestStream,
        prompt: dict[str, Any],
        sampling: SamplingParams,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Start a request; errors of the check and of vLLM's own validation end its stream.

        Args:
            stream: where its chunks and its result go.
            prompt: vLLM's ``TokensPrompt``.
            sampling: vLLM's sampling parameters, from now on the engine's.
            check: called on the engine thread first; what it raises refuses the request.
        """

        self._send(_Command(lambda: self.begin(stream, prompt, sampling, check), stream.fail))

    def begin(
        self,
        stream: RequestStream,
        prompt: dict[str, Any],
        sampling: SamplingParams,
        check: Callable[[], None] | None = None,
    ) -> None:
        """The same at once, on the engine thread."""
        try:
            if check is not None:
                check()
            internal_id = self.engine.add_request(stream.request_id, prompt, sampling)
        except Exception as error:  # of whatever kind vLLM raises: it ends this request, and no other
            stream.fail(own_refusal(error))
            return
        self._running[stream.request_id] = _Running(
            stream, internal_id, len(prompt["prompt_token_ids"]), started=time.perf_counter()
        )

    def abort(self, request_id: str) -> None:
        """Stop a request; does nothing if it has ended."""
        self._send(_Command(lambda: self._abort(request_id), lambda error: None))

    @property
    def has_failed(self) -> bool:
        """Whether the engine stopped on a fault."""
        return self._failure is not None

    def request_close(self) -> None:
        """Ask for the end without waiting for it; does nothing in a process forked off."""
        with self._lock:
            first, self._closing = not self._closing, True
        if first and os.getpid() == self.pid:
            self._commands.put(None)

    def close(self) -> None:
        """Abort what runs, shut vLLM down and end the thread; idempotent."""
        self.request_close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _send(self, command: _Command) -> None:
        with self._lock:
            if not self._closing and self._failure is None:
                self._commands.put(command)
                return
        command.refuse(self._closed_error())

    def _closed_error(self) -> EngineError:
        if self._failure is not None:
            error = EngineError(
                where="embedded engine",
                rule=f"it stopped on a fault: {self._failure}",
                remedy="Close it and start another one.",
            )
            error.__cause__ = self._failure
            return error
        return EngineError(
            where="embedded engine", rule="it is closed", remedy="Start another one: MemDecayEngine(...)."
        )

    # ---- on the engine thread

    def _main(self) -> None:
        try:
            self.engine = self._build()
        except BaseException as error:
            self._failure = error
            self._started.set_exception(error)
            return
        self._started.set_result(self.engine)
        try:
            self._serve()
        except BaseException as error:
            logger.exception("the embedded engine stopped on a fault")
            with self._lock:
                self._failure = error
        finally:
            self._end_all()
            self._shut_down(self.engine)

    def _serve(self) -> None:
        while True:
            if not self._take_commands():
                return
            for output in self.engine.step():
                self._deliver(output)

    def _take_commands(self) -> bool:
        """Run waiting commands; wait for one while nothing runs. False: the engine is to close."""
        while True:
            wait, seconds = not self.engine.has_unfinished_requests(), None
            if wait:
                seconds = self._idle_seconds()
                wait = not self.engine.has_unfinished_requests()  # idle time may have found something to do
            try:
                command = self._commands.get(block=wait, timeout=seconds)
            except queue.Empty:
                if wait:
                    continue
                return True
            if command is None:
                return False
            command.run()

    def _idle_seconds(self) -> float | None:
        """How long to wait for a command; a moment more than asked for, so that what was due then is due."""
        seconds = self.on_idle()
        return None if seconds is None else min(seconds + 0.01, LONGEST_WAIT_SECONDS)

    def _deliver(self, output: RequestOutput) -> None:
        running = self._running.get(output.request_id)
        if running is None:
            return
        completion = output.outputs[0]
        token_ids = tuple(completion.token_ids)
        if token_ids and running.first_token is None:
            running.first_token = time.perf_counter()
        logprobs = None
        if completion.logprobs is not None:
            logprobs = tuple(completion.logprobs)
            running.logprobs = [*(running.logprobs or []), *logprobs]
        running.text.append(completion.text)
        running.token_ids.extend(token_ids)
        if token_ids or completion.text:
            running.stream.put(GenerationChunk(completion.text, token_ids, logprobs))
        if output.finished:
            self._finish(
                running,
                finish_reason=completion.finish_reason or "stop",
                stop_reason=completion.stop_reason,
                cached_tokens=output.num_cached_tokens or 0,
            )

    def _abort(self, request_id: str) -> None:
        running = self._running.get(request_id)
        if running is not None:
            self.engine.abort_request([running.internal_id], internal=True)
            self._finish(running, finish_reason="abort", stop_reason=None, cached_tokens=0)

    def _finish(self, running: _Running, **fields: Any) -> None:
        del self._running[running.stream.request_id]
        now = time.perf_counter()
        running.stream.finish(
            GenerationResult(
                request_id=running.stream.request_id,
                text="".join(running.text),
                token_ids=tuple(running.token_ids),
                prompt_tokens=running.prompt_tokens,
                wall_seconds=now - running.started,
                time_to_first_token_seconds=(running.first_token or now) - running.started,
                logprobs=tuple(running.logprobs) if running.logprobs is not None else None,
                retention=self.take_summary(running.internal_id),
                **fields,
            )
        )

    def _end_all(self) -> None:
        with self._lock:
            self._closing = True
        error = self._closed_error()
        for running in self._running.values():
            running.stream.fail(error)
        self._running.clear()
        while True:  # commands that arrived last must not leave their callers waiting
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return
            if command is not None:
                command.refuse(error)
