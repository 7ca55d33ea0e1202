"""A real MemDecayEngine that steps only when a test says so: whatever it does happens between two known steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from memdecay_adapters.engine import MemDecayEngine

T = TypeVar("T")
MOST_SECONDS = 120.0
"""A command to step that takes longer has hung."""


class SteppedEngine:
    """Holds an engine's thread between two steps until `step` lets it go on.

    The thread serves commands (submit, abort, looking inside) while it is held: as far as it can see, nothing is
    unfinished. Two instance attributes of vLLM's engine and one of its scheduler are replaced, for good.

    Args:
        engine: a running engine without requests.
        scheduled: called on the engine thread after each scheduling, before the step runs, with
            (scheduler, scheduler output). What it raises is raised again by `step`.
    """

    def __init__(self, engine: MemDecayEngine, scheduled: Callable[[Any, Any], None]) -> None:
        self.engine = engine
        self.steps_done = 0
        self._scheduled = scheduled
        self._permits = 0
        self._held = threading.Event()
        self._failures: list[BaseException] = []
        engine.run_on_engine_thread(self._install)

    def step(self, most: int) -> int:
        """Let the engine take up to ``most`` steps, fewer if nothing is left to do; returns how many it took."""
        before = self.steps_done

        def permit(llm: Any, internals: Any) -> None:
            self._held.clear()
            self._permits = most if self._has_unfinished() else 0
            if not self._permits:
                self._held.set()

        self.engine.run_on_engine_thread(permit)
        assert self._held.wait(MOST_SECONDS), "the engine hangs in a step"
        self.look(lambda llm, internals: None)  # what the last step produced is delivered now
        return self.steps_done - before

    def look(self, function: Callable[[Any, Any], T]) -> T:
        """Run a function of (LLMEngine, EngineInternals) on the engine thread, between two steps."""
        result = self.engine.run_on_engine_thread(function)
        if self._failures:
            raise self._failures.pop(0)  # the first one: what follows may come of it
        return result

    def _install(self, llm: Any, internals: Any) -> None:
        scheduler = internals.scheduler
        self._has_unfinished, schedule, step = llm.has_unfinished_requests, scheduler.schedule, llm.step

        def has_unfinished_requests() -> bool:
            return self._permits > 0 and self._has_unfinished()

        def observed_schedule(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            try:
                self._scheduled(scheduler, output)
            except BaseException as error:  # a test that fails must not look like an engine that does
                self._failures.append(error)
            return output

        def counted_step() -> Any:
            self._permits -= 1
            self.steps_done += 1
            try:
                outputs = step()
            except BaseException:
                self._permits = 0
                raise
            finally:
                if not self._permits or not self._has_unfinished():
                    self._permits = 0
                    self._held.set()
            return outputs

        llm.has_unfinished_requests, llm.step = has_unfinished_requests, counted_step
        scheduler.schedule = observed_schedule
