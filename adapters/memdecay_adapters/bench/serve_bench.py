"""``memdecay bench serve``: agents on this engine and on stock vLLM, part by part; finished parts are kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import memdecay_adapters.engine
import memdecay_kernels
from memdecay_adapters.bench.machine import machine, versions
from memdecay_adapters.bench.part_store import PartStore
from memdecay_adapters.bench.serve_kvpress import check_interpreter, measure_kvpress
from memdecay_adapters.bench.serve_options import ServeOptions
from memdecay_adapters.bench.serve_pools import PoolParts
from memdecay_adapters.bench.serve_report import ServeResult, report
from memdecay_adapters.bench.serve_steps import StepParts
from memdecay_adapters.engine.page_size import choose_page_size
from memdecay_adapters.models import DEFAULT_MODEL_NAME, resolve_model
from memdecay_adapters.models.default_model import cache_folder
from memdecay_agents import MemDecayConfig
from memdecay_agents.errors import ConfigError, TraceError
from memdecay_agents.evaluation.outcome_store import code_digest

SCHEMA_VERSION = 1
KVPRESS = "kvpress"
"""Name of the part that another program measures."""
_MEASURING = (
    "engine_under_test", "serve_kvpress", "kvpress_program", "serve_loop", "serve_pools", "serve_steps",
    "serve_workload", "statistics",
)  # fmt: skip
"""Modules whose changes make a finished part be measured again; how it is reported is none of them."""


class ServeBench:
    """All parts; each is measured once, however often it is asked for.

    Args:
        options: what to measure.
        store: file of finished parts; None: in the user's cache.
        fresh: measure again what is in that file.
        any_code: what other versions of the code have finished counts too; the result says which parts those are.
        kvpress_python: interpreter of an environment with kvpress, for the comparison with it; None: left out.
        progress: told what is being done.
        moved: told how many of the wanted parts are done, and how many they are.
    """

    def __init__(
        self,
        options: ServeOptions,
        *,
        store: Path | None = None,
        fresh: bool = False,
        any_code: bool = False,
        kvpress_python: Path | None = None,
        progress: Callable[[str], None] = lambda line: None,
        moved: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._moved = moved
        self.options, self.progress, self._kvpress_python = options, progress, kvpress_python
        self.model_path = resolve_model(options.model)
        config = choose_page_size(MemDecayConfig(), {"dtype": options.dtype})
        self.page = options.page_size_tokens or config.page_size_tokens
        self.store = PartStore(
            store or cache_folder() / "bench-serve.jsonl", self._key(), measuring_code(), any_code=any_code
        )
        self._fresh = fresh
        self._steps = StepParts(options, self.model_path, self.page, progress)
        self._pools = PoolParts(options, self.model_path, self.page, progress)

    def run(self, only: Sequence[str] = ()) -> ServeResult:
        """Measure what is missing, and put everything together.

        Args:
            only: names of parts, or beginnings of them; empty: all.

        Raises:
            ConfigError: no part is called so, or the interpreter with kvpress is not there.
        """
        if self._kvpress_python is not None:
            check_interpreter(self._kvpress_python)
        names = [*self.options.part_names(), *([KVPRESS] if self._kvpress_python else [])]
        unknown = [one for one in only if not any(name.startswith(one) for name in names)]
        if unknown:
            raise ConfigError(
                where=f"--part {unknown[0]}", rule="no part is called so", remedy=f"Parts are {', '.join(names)}."
            )
        wanted = [name for name in names if not only or any(name.startswith(one) for one in only)]
        for done, name in enumerate(wanted):
            self._moved(done, len(wanted))
            self.measure(name)
        self._moved(len(wanted), len(wanted))
        return self.result()

    def measure(self, name: str) -> dict[str, Any]:
        """One part's values."""
        if self._fresh:
            self.store.forget(name)
        return self.store.measure(name, lambda: {**self._make(name), "machine": machine()})

    def _make(self, name: str) -> dict[str, Any]:
        kind, *rest = name.split("-")
        if kind == "steps":
            return self._steps.stock_steps() if rest else self._steps.steps()
        if kind == "lengths":
            return self._steps.lengths(int(rest[0]))
        tokens = None
        if "tokens" in rest:
            tokens, rest = int(rest[-1]), rest[:-2]
        if kind == "search":
            return self._pools.try_max_num_seqs(int(rest[0]), int(rest[1]), tokens)
        if kind == KVPRESS:
            assert self._kvpress_python is not None
            return measure_kvpress(self._kvpress_python, self.model_path, self.options, self.progress)
        percent, budget = int(rest[0]), int(rest[2]) if rest[1:] else self.options.budget_tokens
        ending = "" if tokens is None else f"-tokens-{tokens}"
        tried = {most: self.measure(f"search-{percent}-{most}{ending}") for most in self.options.max_num_seqs}
        best = max(tried, key=lambda most: tried[most]["tokens_per_second"])
        return self._pools.pool(percent, budget, best, tokens)

    def result(self) -> ServeResult:
        """What was measured so far."""
        result = report(self.options, self.store.find)
        kvpress = self.store.find(KVPRESS)
        about = {
            "schema_version": SCHEMA_VERSION,
            "model": self.options.model or DEFAULT_MODEL_NAME,
            "dtype": self.options.dtype,
            "page_size_tokens": self.page,
            "chunk_tokens": self.options.chunk_tokens,
            "budget_tokens": self.options.budget_tokens,
            "batch": self.options.batch,
            "options": json.loads(json.dumps(asdict(self.options), default=str)),
            "machine": machine(),
            "versions": versions(),
            "seed": self.options.workload.seed,
            "code": self.store.code,
            "parts_of_other_code": self.store.of_other_code,
        }
        result.values = {**about, **result.values, "kvpress": kvpress}
        if kvpress is None:
            result.values["kvpress_reason"] = "no environment with kvpress was named (--kvpress-python)"
        result.values["failed_bounds"] = result.failed_bounds
        return result

    def _key(self) -> str:
        """What parts must share to stand in one table: the options, the traces' content, the versions."""
        options = asdict(self.options)
        files = options["workload"].pop("trace_files")
        contents = [content_digest(path) for path in files]
        about = [json.dumps(options, default=str), contents, self.model_path, self.page, versions()]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]


def measuring_code() -> str:
    """A digest of the code whose changes make a finished part be measured again."""
    code = code_digest(Path(memdecay_adapters.engine.__file__).parent, Path(memdecay_kernels.__file__).parent)
    measuring = [(Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8") for name in _MEASURING]
    return hashlib.sha256(json.dumps([code, measuring]).encode()).hexdigest()[:16]


def content_digest(path: Path) -> str:
    """A digest of a trace file, wherever it lies.

    Raises:
        TraceError: it cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise TraceError(
            where=f"trace file {path}",
            rule=f"it cannot be read ({error})",
            remedy="Give a file of traces; `memdecay traces build` makes some from public data sets.",
        ) from error
