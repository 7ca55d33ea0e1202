"""What vLLM's scheduler really holds, sampled at every step: the tests' own view, not the engine's summary."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """One scheduled request in one step, from vLLM's own block table."""

    blocks: tuple[int, ...]
    """Block ids in logical order, 0 where a page was evicted."""
    computed_before: int
    """Tokens computed before the step."""
    scheduled: int
    """Tokens that the step computes."""
    known_tokens: int
    """Prompt and generated tokens when the step was scheduled."""

    @property
    def held(self) -> int:
        return sum(block != 0 for block in self.blocks)

    @property
    def holes(self) -> int:
        return len(self.blocks) - self.held

    @property
    def decoding(self) -> bool:
        return self.known_tokens - self.computed_before <= 1


@dataclass
class Sample:
    """One engine step, after it was scheduled."""

    number: int
    free_blocks: int
    all_rows: dict[str, tuple[int, ...]]
    """Every request that owns blocks, also those that wait."""
    rows: dict[str, Row]
    evictions: int
    """Pages in the ledger so far."""


@dataclass
class Watch:
    """The samples of a watched engine."""

    total_blocks: int
    samples: list[Sample] = field(default_factory=list)

    def rows(self, request: Any) -> list[Row]:
        """The steps of one request; ``request`` is a result, or the id of one."""
        request_id = request if isinstance(request, str) else request.request_id
        return [
            row
            for sample in self.samples
            for name, row in sample.rows.items()
            if name == request_id or name.startswith(f"{request_id}-")
        ]

    def overwritten(self, owner: Any, *, by: Any) -> set[int]:
        """Blocks that ``owner`` gave up and ``by`` (also itself, for another page) held while ``owner`` still ran."""
        held_as: dict[int, int] = {}
        found: set[int] = set()
        for sample in self.samples:
            rows = {name.rsplit("-", 1)[0]: row.blocks for name, row in sample.rows.items()}
            mine = {block: page for page, block in enumerate(rows.get(owner.request_id, ())) if block}
            if mine:
                taken = mine if by is owner else dict.fromkeys(set(rows.get(by.request_id, ())) - mine.keys(), -1)
                found |= {block for block, page in taken.items() if block in held_as and held_as[block] != page}
                held_as.update(mine)
        return found


@contextlib.contextmanager
def watching(
    engine: Any,
    *,
    scheduled: Callable[[Sample], None] | None = None,
    before_step: Callable[[Any], None] | None = None,
) -> Iterator[Watch]:
    """Sample the engine's block tables after each scheduling.

    Args:
        engine: a running MemDecayEngine.
        scheduled: called on the engine thread with each sample, before the step runs.
        before_step: called on the engine thread with the LLMEngine between two steps.
    """
    watch = Watch(engine.pool_stats().total_pages)
    failures: list[BaseException] = []

    def guarded(function: Callable[[Any], None], argument: Any) -> None:
        try:
            function(argument)
        except BaseException as error:  # a failing test must not look like a failing engine
            failures.append(error)

    def install(llm: Any, internals: Any) -> Callable[[], None]:
        scheduler = internals.scheduler
        manager = scheduler.kv_cache_manager.coordinator.single_type_managers[0]
        schedule, step = scheduler.schedule, llm.step

        def watched_schedule(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            tables = {
                request_id: tuple(0 if block.is_null else block.block_id for block in blocks)
                for request_id, blocks in manager.req_to_blocks.items()
            }
            rows = {}
            for request_id, tokens in output.num_scheduled_tokens.items():
                request = scheduler.requests[request_id]
                rows[request_id] = Row(
                    tables[request_id], request.num_computed_tokens - tokens, tokens, request.num_tokens
                )
            sample = Sample(
                number=len(watch.samples),
                free_blocks=manager.block_pool.get_num_free_blocks(),
                all_rows=tables,
                rows=rows,
                evictions=internals.controller.ledger.summary().evicted,
            )
            watch.samples.append(sample)
            if scheduled is not None:
                guarded(scheduled, sample)
            return output

        def watched_step() -> Any:
            if before_step is not None:
                guarded(before_step, llm)
            return step()

        scheduler.schedule, llm.step = watched_schedule, watched_step

        def restore() -> None:
            del scheduler.schedule
            del llm.step

        return restore

    restore = engine.run_on_engine_thread(install)
    try:
        yield watch
    finally:
        if not engine.closed:
            engine.run_on_engine_thread(lambda llm, internals: restore())
    if failures:
        raise failures[0]


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Poll until a condition holds, or fail."""
    import time

    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.005)
