"""``memdecay bench kernels``: what measuring attention and choosing pages cost, on one thread.

mass     attention_mass against vLLM's own attention op over the same cache, and against only reading the keys
scores   score_pages and select_pages at 8,192 tokens
errors   largest relative error of the mass against the torch float32 definition
steps    the share of measuring in a decode step, and a decode step against stock vLLM's, at the default stride
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from memdecay_adapters.bench.engine_bench import EngineBench, EngineBenchOptions
from memdecay_adapters.bench.kernel_cases import MassCase
from memdecay_adapters.bench.machine import machine, versions
from memdecay_adapters.bench.result import BenchResult
from memdecay_adapters.bench.statistics import paired_ratio
from memdecay_adapters.engine.observer import observed_layer_names
from memdecay_agents import MemDecayConfig
from memdecay_kernels import MassPlan, ScoreTerms, implementation_name
from memdecay_kernels.implementations import native_library
from memdecay_kernels.native import host
from memdecay_kernels.native.library import Library
from memdecay_kernels.reference.mass import attention_mass as mass_definition

SCHEMA_VERSION = 1
PAGE_TOKENS = 32
MASS_BOUNDS = {"amx": 0.6, "vec": 0.55}
HOT_BOUND = 0.3
BANDWIDTH_BOUND = 0.62
SCORE_BOUND_US, RANKS_BOUND_US = 30.0, 200.0
SHARE_BOUNDS = {1024: 0.01, 8192: 0.02}
STEP_BOUND = 1.02


@dataclass(frozen=True)
class KernelBenchOptions:
    """What to measure, and how much of it."""

    model: str | None = None
    """Hugging Face id or folder; None: the default small model."""
    pairs: int = 21
    contexts: tuple[int, ...] = (1024, 8192, 32768)
    seed: int = 0
    parts: tuple[str, ...] = ("mass", "scores", "errors", "steps")


def run_kernel_bench(options: KernelBenchOptions, progress: Callable[[str], None] = lambda line: None) -> BenchResult:
    """Run the parts that were asked for, on one thread.

    Args:
        options: what to measure.
        progress: told what is being done.

    Raises:
        ModelError: the model cannot be found. EngineError: an engine did not start or stopped on a fault.
    """
    torch.set_num_threads(1)
    result = BenchResult()
    result.values.update(
        schema_version=SCHEMA_VERSION,
        implementation=implementation_name(),
        page_size_tokens=PAGE_TOKENS,
        machine=machine(),
        versions=versions(),
        seed=options.seed,
    )
    bench = _Bench(options, result, progress)
    for part in options.parts:
        getattr(bench, part)()
    return result


class _Bench:
    def __init__(self, options: KernelBenchOptions, result: BenchResult, progress: Callable[[str], None]) -> None:
        self.options, self.result, self.progress = options, result, progress
        self._hot_seconds: dict[int, float] = {}
        """Seconds of one layer's mass right after its attention, by context."""

    # ---- mass

    def mass(self) -> None:
        """Cold and hot ratios to the attention op, and the fraction of the machine's reading speed."""
        values = self.result.values
        values["mass_over_attention"], values["mass_over_attention_intervals"] = {}, {}
        values["mass_seconds"], values["attention_seconds"], values["key_read_gb_per_s"] = {}, {}, {}
        values["bandwidth_fraction"] = {}
        for isa, bound in MASS_BOUNDS.items():
            if isa == "amx" and not torch.cpu._is_amx_tile_supported():
                values["mass_over_attention"][isa] = None
                values["mass_over_attention_reason"] = "this processor has no matrix unit (AMX)"
                continue
            for name in ("mass_over_attention", "mass_over_attention_intervals", "mass_seconds", "attention_seconds"):
                values[name][isa] = {}
            for context in self.options.contexts:
                self._mass_at(isa, context, bound)

    def _mass_at(self, isa: str, context: int, bound: float) -> None:
        self.progress(f"attention mass, {isa} layout, {context} tokens")
        values = self.result.values
        layers = max(4, min(30, 200_000 // context))
        case = MassCase(isa, context, layers, PAGE_TOKENS, seed=self.options.seed)
        case.mass(0)  # fills the call's record
        times: dict[str, list[float]] = {"attention": [], "mass": [], "read": [], "hot": [], "beside": []}
        for _ in range(self.options.pairs):
            times["attention"].append(_seconds(case.attention, layers))
            times["mass"].append(_seconds(case.mass, layers))
            if native_library() is not None:
                times["read"].append(_seconds(case.read, layers))
            hot = beside = 0.0
            for layer in range(layers):
                start = time.perf_counter()
                case.attention(layer)
                between = time.perf_counter()
                case.mass(layer)
                hot += time.perf_counter() - between
                beside += between - start
            times["hot"].append(hot / layers)
            times["beside"].append(beside / layers)
        ratio = paired_ratio(times["mass"], times["attention"])
        key = str(context)
        values["mass_over_attention"][isa][key] = round(ratio.median, 4)
        values["mass_over_attention_intervals"][isa][key] = [round(ratio.low, 4), round(ratio.high, 4)]
        values["mass_seconds"][isa][key] = round(statistics.median(times["mass"]), 8)
        values["attention_seconds"][isa][key] = round(statistics.median(times["attention"]), 8)
        self._note(f"mass_over_attention_{isa}_{key}", ratio.within(bound), bound)
        if isa != self._engine_isa():
            return
        self._hot_seconds[context] = statistics.median(times["hot"])
        if context == min(self.options.contexts):
            hot_ratio = paired_ratio(times["hot"], times["beside"])
            self.result.set_ratio(f"hot_mass_over_attention_{key}", hot_ratio, HOT_BOUND)
        elif native_library() is not None:
            fraction = paired_ratio(times["read"], times["mass"])
            values["bandwidth_fraction"][key] = round(fraction.median, 4)
            values["key_read_gb_per_s"][key] = round(case.key_bytes / statistics.median(times["read"]) / 1e9, 2)
            self._note(f"bandwidth_fraction_{key}", fraction.high >= BANDWIDTH_BOUND, BANDWIDTH_BOUND)

    def _engine_isa(self) -> str:
        return "amx" if torch.cpu._is_amx_tile_supported() else "vec"

    # ---- scores

    def scores(self) -> None:
        """Microseconds of scoring and selecting at 8,192 tokens, as the policies call them."""
        self.progress("scores and selection, 8192 tokens")
        library = native_library()
        if library is None:
            for key in ("score_select_us_8192", "score_select_ranks_us_8192"):
                self.result.values[key] = None
                self.result.values[f"{key}_reason"] = "the native library is not in use"
            return
        for key, form, bound in (
            ("score_select_us_8192", "magnitude", SCORE_BOUND_US),
            ("score_select_ranks_us_8192", "rank", RANKS_BOUND_US),
        ):
            samples = _score_and_select_us(library, 8192, form, self.options.seed)
            self.result.values[key] = round(statistics.median(samples), 2)
            self.result.check(key, statistics.median(samples) <= bound, bound)

    # ---- errors

    def errors(self) -> None:
        """The mass of one layer against the definition, in every layout that is measured."""
        self.progress("errors")
        worst = 0.0
        for isa in MASS_BOUNDS:
            if isa == "amx" and not torch.cpu._is_amx_tile_supported():
                continue
            for context, window in ((1024, 1), (1000, 16), (8192, 4)):
                worst = max(worst, _relative_error(isa, context, window, self.options.seed))
        self.result.values["max_relative_error"] = float(f"{worst:.3g}")

    # ---- steps

    def steps(self) -> None:
        """Decode steps of the small model: the share of measuring, and the ratio to stock vLLM."""
        if not self._hot_seconds:
            self._mass_at_for_steps()
        config = MemDecayConfig()
        self.result.values["step_share"], self.result.values["stock_step_seconds"] = {}, {}
        for context, bound in SHARE_BOUNDS.items():
            options = EngineBenchOptions(
                model=self.options.model, pairs=self.options.pairs, batches=(1,), seed=self.options.seed,
                context_tokens=context, parts=(),
            )  # fmt: skip
            if context > 4096:  # a step at the model's end is shorter still: the share is not understated
                options = replace(options, context_tokens=context - 512, pairs=15)
            bench = EngineBench.of(options, self.result, self.progress)
            if context == min(SHARE_BOUNDS):
                ratio, seconds = bench.measuring_against_stock(1)
                self.result.set_ratio("step_ratio_vs_stock", ratio, STEP_BOUND)
            else:
                seconds = bench.stock_step_seconds(1)
            layers = len(observed_layer_names([str(n) for n in range(bench.num_layers)], config.observed_layers))
            share = layers * self._hot_seconds[context] / (config.measure_every_steps * seconds)
            self.result.values["step_share"][str(context)] = float(f"{share:.3g}")
            self.result.values["stock_step_seconds"][str(context)] = round(seconds, 6)
            self._note(f"step_share_{context}", share <= bound, bound)

    def _mass_at_for_steps(self) -> None:
        values = self.result.values
        isa = self._engine_isa()
        for name in ("mass_over_attention", "mass_over_attention_intervals", "mass_seconds", "attention_seconds"):
            values[name] = {isa: {}}
        values["key_read_gb_per_s"], values["bandwidth_fraction"] = {}, {}
        for context in SHARE_BOUNDS:
            self._mass_at(isa, context, MASS_BOUNDS[isa])

    def _note(self, key: str, met: bool, bound: float) -> None:
        self.result.values.setdefault("bounds", {})[key] = {"bound": bound, "met": met}
        if not met:
            self.result.failed_bounds.append(key)


def _seconds(operation: Callable[[int], None], layers: int) -> float:
    """Mean seconds of one layer, over all layers in turn."""
    start = time.perf_counter()
    for layer in range(layers):
        operation(layer)
    return (time.perf_counter() - start) / layers


def _score_and_select_us(library: Library, tokens: int, form: str, seed: int) -> list[float]:
    page, rng = 16, np.random.default_rng(seed)
    pages = tokens // page

    def some(scale: float) -> Any:
        return (rng.random(tokens) * scale).astype(np.float32)

    columns = host.HostColumns(
        region=rng.integers(0, 7, tokens).astype(np.int8),
        flags=np.zeros(tokens, np.int8),
        refreshed_at_ticks=rng.integers(0, 9000, tokens),
        ewma_mass=some(0.01),
        accumulated_relative=some(50.0),
        salience_sum=some(9.0),
        salience_weight=rng.integers(1, 9, tokens).astype(np.float32),
        last_query_mass=some(0.01),
        key_norm=some(20.0),
    )
    ranks = form == "rank"
    half_life = np.array([1e9, 300, 200, 50, 60, 80, 10], np.float32)
    terms = ScoreTerms(
        base_priority=np.array([2.0, 1.5, 1.2, 0.7, 0.8, 0.9, 0.3], np.float32),
        decay_rate_per_tick=(math.log(2) / half_life).astype(np.float32),
        half_life_ticks=half_life,
        decay_form="power_law" if ranks else "exponential",
        attention_column="accumulated_relative" if ranks else "ewma_mass",
        attention_weight=1.0,
        attention_form="rank" if ranks else "magnitude",
        salience_weight=1.0 if ranks else 0.0,
        salience_form="rank" if ranks else "magnitude",
    )
    held = np.arange(pages)
    evictable = np.ones(pages, np.bool_)
    evictable[0] = False
    parts, chosen = np.empty((3, pages), np.float32), np.empty(pages // 4, np.int64)
    samples = []
    for repetition in range(220):
        start = time.perf_counter()
        host.score_pages(library, columns, held, evictable, terms, page, tokens, 9000, parts)
        host.select_pages(library, parts.sum(0), evictable, chosen)
        if repetition >= 20:
            samples.append((time.perf_counter() - start) * 1e6)
    return samples


def _relative_error(isa: str, context: int, window: int, seed: int) -> float:
    case = MassCase(isa, context, 1, PAGE_TOKENS, seed=seed)
    shape = case.shape
    query = torch.randn(window, shape.num_heads, shape.head_dim, generator=torch.Generator().manual_seed(seed + 1))
    query = query.to(shape.dtype)
    ends = torch.tensor([window], dtype=torch.int32)
    plan = MassPlan(case.block_table, case.lengths, ends, ends, page_size_tokens=PAGE_TOKENS, query_tokens=window)
    plan.add_layer(query, case.keys[0], case.layout, case.scale)
    expected = torch.zeros_like(plan.mass)
    mass_definition(
        query, case.keys[0], case.layout, case.block_table, case.lengths, ends, ends, case.scale, "mean",
        expected, False,
    )  # fmt: skip
    return float(((plan.mass - expected).abs() / expected.clamp(min=1e-30)).max())
