"""``memdecay bench engine``: what eviction costs where it changes nothing, and what it gives where memory is short.

steps    decode steps of stock vLLM and of this engine, nothing evicted, in interleaved pairs
turns    a session's turn against stock vLLM prefilling the same tokens on a cached prefix of the same length
agents   how many agents one pool serves at once, and what stock vLLM does with as many on that pool
exact    three turns of a session under a budget against transformers in float32
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memdecay_adapters.bench.engine_under_test import Crowd, EngineRecipe, EngineUnderTest
from memdecay_adapters.bench.machine import machine, versions
from memdecay_adapters.bench.result import SCHEMA_VERSION, BenchResult
from memdecay_adapters.bench.statistics import PairedRatio, paired_ratio
from memdecay_adapters.engine.page_size import choose_page_size
from memdecay_adapters.models import DEFAULT_MODEL_NAME, resolve_model
from memdecay_agents import MemDecayConfig, RequestHints, Span
from memdecay_agents.ledger import LedgerEntry

STEP_BOUND = 1.02
TURN_BOUND = 1.05
EXACT_BOUND = 2e-4
SYSTEM_TOKENS = 48


@dataclass(frozen=True)
class EngineBenchOptions:
    """What to measure, and how much of it."""

    model: str | None = None
    """Hugging Face id or folder; None: the default small model."""
    dtype: str = "auto"
    pairs: int = 21
    """Interleaved pairs for each ratio."""
    steps_per_sample: int = 16
    """Decode steps whose mean is one side of a pair; a multiple of the stride of measuring."""
    context_tokens: int = 1024
    batches: tuple[int, ...] = (1, 8)
    turn_tokens: int = 256
    """New tokens of a turn."""
    agent_budget_tokens: int = 512
    agents: int = 10
    """The pool of the agents' part is sized so that this many fit."""
    seed: int = 0
    parts: tuple[str, ...] = ("steps", "turns", "agents", "exact")


def run_engine_bench(options: EngineBenchOptions, progress: Callable[[str], None] = lambda line: None) -> BenchResult:
    """Run the parts that were asked for.

    Args:
        options: what to measure.
        progress: told what is being done.

    Raises:
        ModelError: the model cannot be found. EngineError: an engine did not start or stopped on a fault.
    """
    model_path = resolve_model(options.model)
    config = choose_page_size(MemDecayConfig(), {"dtype": options.dtype})
    result = BenchResult()
    result.values.update(
        schema_version=SCHEMA_VERSION,
        model=options.model or DEFAULT_MODEL_NAME,
        dtype=options.dtype,
        page_size_tokens=config.page_size_tokens,
        context_tokens=options.context_tokens,
        machine=machine(),
        versions=versions(),
        seed=options.seed,
    )
    bench = EngineBench(options, model_path, config.page_size_tokens, result, progress)
    for part in options.parts:
        getattr(bench, part)()
    return result


class EngineBench:
    """The parts, each a method; see the module."""

    def __init__(
        self,
        options: EngineBenchOptions,
        model_path: str,
        page: int,
        result: BenchResult,
        progress: Callable[[str], None],
    ) -> None:
        self.options, self.model_path, self.page = options, model_path, page
        self.result, self.progress = result, progress
        self._random = random.Random(options.seed)

    @classmethod
    def of(cls, options: EngineBenchOptions, result: BenchResult, progress: Callable[[str], None]) -> EngineBench:
        """With the model and the page size that the options lead to."""
        page = choose_page_size(MemDecayConfig(), {"dtype": options.dtype}).page_size_tokens
        return cls(options, resolve_model(options.model), page, result, progress)

    @property
    def num_layers(self) -> int:
        """Attention layers of the model."""
        return int(json.loads((Path(self.model_path) / "config.json").read_text())["num_hidden_layers"])

    # ---- decode steps

    def steps(self) -> None:
        """Decode steps at one context length, with nothing evicted: measurement off, and at the default stride."""
        options = self.options
        with EngineUnderTest(self._stepping("stock")) as theirs, EngineUnderTest(self._stepping("off")) as ours:
            ratios = {}
            for batch in options.batches:
                self.progress(f"decode steps, batch {batch}, measurement off")
                ratios[batch], seconds = self._step_pairs(ours, theirs, batch)
                self.result.set_ratio(f"step_ratio_vs_stock_batch_{batch}", ratios[batch], STEP_BOUND)
                self.result.values[f"stock_step_seconds_batch_{batch}"] = round(seconds, 6)
        worst = max(ratios.values(), key=lambda ratio: ratio.low)
        self.result.set_ratio("step_ratio_vs_stock", worst, STEP_BOUND)
        with EngineUnderTest(self._stepping("stock")) as theirs, EngineUnderTest(self._stepping("stock")) as same:
            self.progress("decode steps, stock against itself: what the machine's noise is")
            ratio, _ = self._step_pairs(same, theirs, min(options.batches))
            self.result.set_ratio(f"step_ratio_stock_vs_stock_batch_{min(options.batches)}", ratio)
        for batch in options.batches:
            ratio, _ = self.measuring_against_stock(batch)
            self.result.set_ratio(f"step_ratio_default_stride_batch_{batch}", ratio)

    def measuring_against_stock(self, batch: int) -> tuple[PairedRatio, float]:
        """A decode step that measures at the default stride against stock vLLM's, and the latter's seconds."""
        self.progress(f"decode steps, batch {batch}, measuring at the default stride")
        with EngineUnderTest(self._stepping("stock")) as theirs, EngineUnderTest(self._stepping("on")) as ours:
            return self._step_pairs(ours, theirs, batch)

    def stock_step_seconds(self, batch: int) -> float:
        """Median seconds of a decode step of stock vLLM."""
        self.progress(f"decode steps of stock vLLM, batch {batch}, {self.options.context_tokens} tokens")
        with EngineUnderTest(self._stepping("stock")) as engine:
            self._start(engine, batch)
            samples = [statistics.fmean(engine.decode(self.options.steps_per_sample)) for _ in range(5)]
            engine.stop()
        return statistics.median(samples)

    def _stepping(self, kind: str) -> EngineRecipe:
        """An engine for decode steps: "stock", or ours with measurement "off" or "on"."""
        options = self.options
        longest = options.context_tokens + options.steps_per_sample * (options.pairs + 2) + 32
        # at least the model's longest context, which vLLM asks for at start-up
        pool = 1 + max(max(options.batches) * self._pages(longest), self._pages(8192)) + self._pages(512)
        if kind == "stock":
            return self._recipe("stock", pool)
        # a budget that never binds: the whole path of planning runs in every step
        policy = "recency" if kind == "off" else "memdecay"
        return self._recipe("memdecay", pool, policy=policy, default_budget_tokens=longest * 2)

    def _start(self, engine: EngineUnderTest, batch: int, prompts: list[list[int]] | None = None) -> None:
        options = self.options
        prompts = prompts or [self._ids(options.context_tokens) for _ in range(batch)]
        hints = [self._hints(options.context_tokens, f"step-{n}") for n in range(batch)]
        engine.start(prompts, options.steps_per_sample * (options.pairs + 1) + 8, hints)
        engine.decode(options.steps_per_sample)  # warm

    def _step_pairs(self, ours: EngineUnderTest, theirs: EngineUnderTest, batch: int) -> tuple[PairedRatio, float]:
        options = self.options
        prompts = [self._ids(options.context_tokens) for _ in range(batch)]
        for engine in (ours, theirs):
            self._start(engine, batch, prompts)
        samples: dict[int, list[float]] = {id(ours): [], id(theirs): []}
        for pair in range(options.pairs):
            for engine in (ours, theirs) if pair % 2 else (theirs, ours):
                samples[id(engine)].append(statistics.fmean(engine.decode(options.steps_per_sample)))
        for engine in (ours, theirs):
            engine.stop()
        return paired_ratio(samples[id(ours)], samples[id(theirs)]), statistics.median(samples[id(theirs)])

    # ---- turns

    def turns(self) -> None:
        """The time to the first token of a session's turn, against a prefix hit of the same retained length."""
        options = self.options
        retained = options.context_tokens // self.page * self.page
        chunk = max(512, options.turn_tokens)
        # the pool holds the session's budget, a chunk, and all the stock engine's turns with their cached prefix
        pool = 4 + self._pages(retained) + self._pages(chunk) + (options.pairs + 4) * self._pages(options.turn_tokens)
        stock = self._recipe("stock", pool, chunk=chunk)
        for key, policy, bound in (
            ("turn_ratio_vs_stock_cached_prefix", "recency", TURN_BOUND),  # evicting, measurement off
            ("turn_ratio_default_stride", "memdecay", None),  # evicting, measuring
        ):
            self.progress(f"turns of a session, policy {policy}")
            ours = self._recipe("memdecay", pool, chunk=chunk, default_budget_tokens=retained, policy=policy)
            ratio, stock_seconds, computed = self._turn_pairs(stock, ours, retained)
            self.result.set_ratio(key, ratio, bound)
            self.result.values["stock_turn_seconds"] = round(stock_seconds, 6)
            self.result.values["turn_computed_tokens"] = computed
        self.result.values["turn_retained_tokens"] = retained

    def _turn_pairs(
        self, stock: EngineRecipe, ours_recipe: EngineRecipe, retained: int
    ) -> tuple[PairedRatio, float, int]:
        options = self.options
        times: dict[str, list[float]] = {"ours": [], "stock": []}
        continued = []
        with EngineUnderTest(stock) as theirs, EngineUnderTest(ours_recipe) as ours:
            prefix = self._ids(retained)
            theirs.turn(prefix, 1)
            history = self._ids(2 * retained)
            first = ours.turn(history, 2, self._hints(len(history), "session"))
            history = [*history, *first.token_ids]
            for pair in range(options.pairs + 1):
                new = self._ids(options.turn_tokens)
                # the last sampled token is computed with the turn; the stock engine is given as many
                stock_ids = [*prefix, *self._ids(options.turn_tokens + 1)]
                for name in ("ours", "stock") if pair % 2 else ("stock", "ours"):
                    if name == "stock":
                        turn = theirs.turn(stock_ids, 2)
                        assert turn.cached_tokens == retained, "the stock engine lost its prefix"
                    else:
                        ids = [*history, *new]
                        turn = ours.turn(ids, 2, self._hints(len(ids), "session"))
                        continued.append(len(ids) - turn.cached_tokens)
                        history = [*ids, *turn.token_ids]
                    if pair:  # the first one warms up
                        times[name].append(turn.first_token_seconds)
        return paired_ratio(times["ours"], times["stock"]), statistics.median(times["stock"]), max(continued)

    # ---- agents at once

    def agents(self) -> None:
        """Agents of B pages in a pool of P: as many as fit are served at once, with no preemption."""
        options, chunk = self.options, 256
        budget_pages, chunk_pages = options.agent_budget_tokens // self.page, self._pages(256)
        pool = math.ceil(options.agents * budget_pages / 0.95) + chunk_pages + 1
        limit = math.floor(0.95 * (pool - 1 - chunk_pages) / budget_pages)
        length = 2 * options.agent_budget_tokens - 128
        prompts = [self._ids(length) for _ in range(limit)]
        hints = [self._hints(length, f"agent-{n}") for n in range(limit)]
        new_tokens = 6 * self.page
        crowds: dict[str, Crowd] = {}
        recipes = {
            "memdecay": self._recipe("memdecay", pool, chunk=chunk, default_budget_tokens=options.agent_budget_tokens),
            "stock": self._recipe("stock", pool, chunk=chunk),
        }
        for name, recipe in recipes.items():
            self.progress(f"{limit} agents at once in {pool} pages, {name}")
            with EngineUnderTest(recipe) as engine:
                crowds[name] = engine.crowd(prompts, new_tokens, hints)
        ours, stock = crowds["memdecay"], crowds["stock"]
        self.result.values.update(
            agents_limit=limit,
            agents_served=ours.most_running,
            preemptions=ours.preemptions,
            stock_agents_served=stock.most_running,
            stock_preemptions=stock.preemptions,
            agents_pool_pages=pool,
            agents_budget_pages=budget_pages,
            agents_chunk_pages=chunk_pages,
            agents_prompt_tokens=length,
            agents_new_tokens=new_tokens,
            agents_seconds=round(ours.seconds, 3),
            stock_agents_seconds=round(stock.seconds, 3),
        )
        self.result.check("agents_served", ours.most_running >= limit and ours.preemptions == 0, limit)

    # ---- exactness

    def exact(self) -> None:
        """Three turns under a budget, float32: largest difference of a top-20 log-probability from the reference."""
        from memdecay_adapters.bench.reference import MaskedReference, logprob_distance

        self.progress("three turns against transformers in float32")
        reference = MaskedReference(self.model_path)
        worst = unmasked = 0.0
        evictions: list[LedgerEntry] = []
        recipe = self._recipe("memdecay", 256, dtype="float32", chunk=128, default_budget_tokens=320)
        with EngineUnderTest(recipe) as engine:
            ids = self._ids(480)
            for _ in range(3):
                turn = engine.turn(ids, 16, self._hints(len(ids), "exact"), 20)
                evictions += [LedgerEntry.model_validate(entry) for entry in turn.evictions]
                sequence = [*ids, *turn.token_ids]
                rows = reference.logprobs(sequence[:-1], evictions)
                worst = max(worst, logprob_distance(rows, len(ids), turn.logprobs))
                unmasked = max(unmasked, logprob_distance(reference.logprobs(sequence[:-1]), len(ids), turn.logprobs))
                ids = [*sequence, *self._ids(160)]
        self.result.values["max_abs_dlogprob"] = worst
        self.result.values["max_abs_dlogprob_unmasked"] = unmasked
        self.result.values["exact_evicted_pages"] = len(evictions)
        self.result.check("max_abs_dlogprob", worst <= EXACT_BOUND, EXACT_BOUND)

    # ---- parts

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.page)

    def _ids(self, tokens: int) -> list[int]:
        return [self._random.randrange(100, 20000) for _ in range(tokens)]

    def _hints(self, tokens: int, session: str) -> RequestHints:
        half = (SYSTEM_TOKENS + tokens) // 2
        spans = (Span(0, SYSTEM_TOKENS, "system"), Span(SYSTEM_TOKENS, half, "tool_out"), Span(half, tokens, "user"))
        return RequestHints(session=session, agent=session, spans=spans)

    def _recipe(
        self, kind: Any, pool: int, *, dtype: str | None = None, chunk: int = 512, **config: Any
    ) -> EngineRecipe:
        return EngineRecipe(
            kind=kind,
            model_path=self.model_path,
            dtype=dtype or self.options.dtype,
            page_size_tokens=self.page,
            chunk_tokens=chunk,
            pool_pages=pool,
            max_model_len=min(8192, (pool - 1) * self.page) if kind == "stock" else 8192,
            config=config,
        )
