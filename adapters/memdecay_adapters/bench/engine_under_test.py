"""One engine, stock vLLM's or ours, in a process of its own, driven step by step from outside.

Both are built by the same function, with the engine core in the process and the same arguments but for what makes
pages go, so that a ratio between them is the price of exactly that.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Literal, Self

from memdecay_agents import MemDecayConfig, RequestHints
from memdecay_agents.errors import EngineError

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine

    from memdecay_adapters.engine.inprocess import EngineInternals
    from memdecay_adapters.engine.tier import HostTier


@dataclass(frozen=True)
class EngineRecipe:
    """How to build an engine."""

    kind: Literal["stock", "memdecay"]
    model_path: str
    dtype: str
    page_size_tokens: int | None
    """None: stock vLLM's own choice."""
    chunk_tokens: int
    pool_pages: int
    """The pool's blocks, the null block included."""
    max_model_len: int = 8192
    """Longest sequence in tokens; stock vLLM asks that one fits the pool."""
    max_num_seqs: int = 64
    config: dict[str, Any] = field(default_factory=dict)
    """Fields of `MemDecayConfig` beside the page size."""
    engine_args: dict[str, Any] = field(default_factory=dict)
    """Further vLLM engine arguments."""
    host_tier: HostTier | None = None


@dataclass(frozen=True)
class Turn:
    """One request that was served to its end."""

    token_ids: list[int]
    first_token_seconds: float
    cached_tokens: int
    pages_held: int | None
    logprobs: list[dict[int, float]]
    evictions: list[dict[str, Any]]
    """Ledger entries as plain data."""
    recalled_pages: int = 0
    """Pages that came back from host memory."""
    seconds: float = 0.0
    """To the last token."""


@dataclass(frozen=True)
class Crowd:
    """Several requests that were sent at once."""

    seconds: float
    most_running: int
    """Requests that ran in the same step, at most."""
    preemptions: int
    generated_tokens: int


class DrivenEngine:
    """What runs in the child process."""

    tool: Any = None
    """What a function given to `EngineUnderTest.run` keeps here for the next one."""

    def __init__(self, recipe: EngineRecipe) -> None:
        from vllm.engine.arg_utils import EngineArgs

        from memdecay_adapters.engine.arguments import DEFAULTS, build_engine_args
        from memdecay_adapters.engine.inprocess import EngineInternals
        from memdecay_adapters.engine.lifecycle import build_llm_engine
        from memdecay_adapters.engine.settings import EngineSettings
        from memdecay_adapters.engine.tier.heads import with_heads

        arguments: dict[str, Any] = {
            "dtype": recipe.dtype,
            "max_num_batched_tokens": recipe.chunk_tokens,
            "max_model_len": recipe.max_model_len,
            "max_num_seqs": recipe.max_num_seqs,
            "num_gpu_blocks_override": recipe.pool_pages,
            **recipe.engine_args,
        }
        self._internals: EngineInternals | None = None
        if recipe.kind == "stock":
            arguments = {**DEFAULTS, **arguments}
            if recipe.page_size_tokens is not None:
                arguments["block_size"] = recipe.page_size_tokens
            self.engine: LLMEngine = build_llm_engine(EngineArgs(model=recipe.model_path, **arguments))
        else:
            config = MemDecayConfig(**{**recipe.config, "page_size_tokens": recipe.page_size_tokens})
            settings = EngineSettings(config=config, host_tier=with_heads(recipe.host_tier, recipe.model_path))
            built = build_engine_args(recipe.model_path, settings, arguments)
            self.engine = build_llm_engine(built)
            self._internals = EngineInternals(self.engine)
        self._number = 0

    @property
    def internals(self) -> EngineInternals:
        """Of an engine that evicts."""
        assert self._internals is not None
        return self._internals

    @property
    def scheduler(self) -> Any:
        """vLLM's scheduler."""
        return self.engine.engine_core.engine_core.scheduler

    def page_size_tokens(self) -> int:
        """The page size in force."""
        return int(self.engine.vllm_config.cache_config.block_size)

    def add(self, ids: Sequence[int], new_tokens: int, hints: RequestHints | None, logprobs: int | None) -> str:
        """Send a greedy request that generates exactly ``new_tokens``; returns its id."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, logprobs=logprobs)
        if hints is not None and self._internals is not None:
            params.extra_args = dict(hints.to_extra_args())
        self._number += 1
        name = f"bench-{self._number}"
        self.engine.add_request(name, {"prompt_token_ids": list(ids)}, params)
        return name

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of a module with this engine and further arguments."""
        return function(self, *arguments)

    def start(self, prompts: Sequence[Sequence[int]], new_tokens: int, hints: Sequence[RequestHints | None]) -> None:
        """Add requests and step until each has its first token: from now on steps only decode."""
        waiting = {self.add(ids, new_tokens, hint, None) for ids, hint in zip(prompts, hints, strict=True)}
        while waiting:
            for output in self.engine.step():
                if output.outputs[0].token_ids:
                    waiting.discard(output.request_id)

    def decode(self, steps: int) -> list[float]:
        """Seconds of each of the next steps."""
        seconds = []
        for _ in range(steps):
            before = time.perf_counter()
            self.engine.step()
            seconds.append(time.perf_counter() - before)
        return seconds

    def stop(self) -> None:
        """Abort all that runs."""
        self.engine.abort_request([request.request_id for request in self.scheduler.running], internal=True)
        self.engine.step()

    def turn(self, ids: Sequence[int], new_tokens: int, hints: RequestHints | None, logprobs: int | None) -> Turn:
        """Serve one request alone."""
        before = time.perf_counter()
        self.add(ids, new_tokens, hints, logprobs)
        first = None
        final = None
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                if first is None and output.outputs[0].token_ids:
                    first = time.perf_counter() - before
                final = output
        seconds = time.perf_counter() - before
        assert first is not None
        assert final is not None
        summary = (final.kv_transfer_params or {}).get("memdecay") if self._internals is not None else None
        evictions = []
        if self._internals is not None and summary is not None:
            ledger = self._internals.controller.ledger
            evictions = [entry.model_dump(mode="json") for entry in ledger.entries(request_id=summary["request_id"])]
        rows = final.outputs[0].logprobs or []
        return Turn(
            token_ids=list(final.outputs[0].token_ids),
            first_token_seconds=first,
            cached_tokens=final.num_cached_tokens or 0,
            pages_held=None if summary is None else summary["pages_held"],
            logprobs=[{token: entry.logprob for token, entry in row.items()} for row in rows],
            evictions=evictions,
            recalled_pages=len((summary or {}).get("recalled_pages", ())),
            seconds=seconds,
        )

    def crowd(self, prompts: Sequence[Sequence[int]], new_tokens: int, hints: Sequence[RequestHints | None]) -> Crowd:
        """Send requests at once and serve them to their ends."""
        before = time.perf_counter()
        for ids, hint in zip(prompts, hints, strict=True):
            self.add(ids, new_tokens, hint, None)
        requests = list(self.scheduler.requests.values())
        most_running = generated = 0
        while self.engine.has_unfinished_requests():
            outputs = self.engine.step()
            most_running = max(most_running, len(self.scheduler.running))
            generated += sum(len(output.outputs[0].token_ids) for output in outputs if output.finished)
        return Crowd(
            seconds=time.perf_counter() - before,
            most_running=most_running,
            preemptions=sum(request.num_preemptions for request in requests),
            generated_tokens=generated,
        )


def end_with_parent() -> None:
    """End this process as soon as its parent has ended, killed or not, in the midst of a call too."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch(sentinel: int) -> None:
        multiprocessing.connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, args=(parent.sentinel,), daemon=True).start()


def _serve(recipe: EngineRecipe, pipe: Connection) -> None:
    end_with_parent()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    try:
        engine = DrivenEngine(recipe)
        pipe.send((True, engine.page_size_tokens()))
        while (call := pipe.recv()) is not None:
            method, arguments = call
            pipe.send((True, getattr(engine, method)(*arguments)))
    except EOFError:
        return
    except BaseException:
        pipe.send((False, traceback.format_exc()))


class EngineUnderTest:
    """An engine in another process; use it as a context manager.

    Args:
        recipe: how to build it.
        wait: until it has started; else `wait_until_started` must be called before anything else.

    Raises:
        EngineError: it did not start, or stopped on a fault; with the traceback of the child.
    """

    page_size_tokens: int
    """In force; known once it has started."""

    def __init__(self, recipe: EngineRecipe, *, wait: bool = True) -> None:
        self.recipe = recipe
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(recipe, theirs), daemon=True)
        self._process.start()
        theirs.close()
        if wait:
            self.wait_until_started()

    def wait_until_started(self) -> None:
        """Wait for an engine that was not waited for."""
        self.page_size_tokens = self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # it stopped on a fault
            self._pipe.send(None)
        self._process.join(timeout=30)
        if self._process.is_alive():
            self._process.terminate()

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """See `DrivenEngine.run`."""
        return self._call("run", function, *arguments)

    def start(self, prompts: Sequence[Sequence[int]], new_tokens: int, hints: Sequence[RequestHints | None]) -> None:
        """See `DrivenEngine.start`."""
        self._call("start", prompts, new_tokens, hints)

    def decode(self, steps: int) -> list[float]:
        """See `DrivenEngine.decode`."""
        return list(self._call("decode", steps))

    def stop(self) -> None:
        """See `DrivenEngine.stop`."""
        self._call("stop")

    def turn(
        self, ids: Sequence[int], new_tokens: int, hints: RequestHints | None = None, logprobs: int | None = None
    ) -> Turn:
        """See `DrivenEngine.turn`."""
        turn: Turn = self._call("turn", ids, new_tokens, hints, logprobs)
        return turn

    def crowd(self, prompts: Sequence[Sequence[int]], new_tokens: int, hints: Sequence[RequestHints | None]) -> Crowd:
        """See `DrivenEngine.crowd`."""
        crowd: Crowd = self._call("crowd", prompts, new_tokens, hints)
        return crowd

    def _call(self, method: str, *arguments: Any) -> Any:
        self._pipe.send((method, arguments))
        return self._answer()

    def _answer(self) -> Any:
        try:
            fine, value = self._pipe.recv()
        except EOFError:
            fine, value = False, "the process ended"
        if not fine:
            raise EngineError(
                where=f"{self.recipe.kind} engine of the benchmark",
                rule=f"it stopped: {value}",
                remedy="Run `memdecay doctor`; a smaller model or pool may fit the memory.",
            )
        return value


@contextlib.contextmanager
def engines_under_test(recipes: Mapping[str, EngineRecipe]) -> Iterator[dict[str, EngineUnderTest]]:
    """Several engines, started at the same time."""
    with contextlib.ExitStack() as stack:
        engines = {name: stack.enter_context(EngineUnderTest(recipe, wait=False)) for name, recipe in recipes.items()}
        for engine in engines.values():
            engine.wait_until_started()
        yield engines
