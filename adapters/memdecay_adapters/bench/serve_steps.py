"""Decode steps of long conversations under a fixed budget, against stock vLLM at a short context.

steps        stock vLLM short, ours middle and long, the three taking turns
steps-stock  stock vLLM short and long
lengths-B    stock vLLM short, stock vLLM and ours at each length, taking turns, under a budget of B tokens
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

from memdecay_adapters.bench.engine_under_test import EngineRecipe, EngineUnderTest, engines_under_test
from memdecay_adapters.bench.serve_options import ServeOptions
from memdecay_adapters.bench.statistics import PairedRatio, paired_ratio
from memdecay_agents import RequestHints, Span

SYSTEM_TOKENS = 48


class StepParts:
    """The parts that time decode steps.

    Args:
        options: what to measure.
        model_path: what both engines load.
        page: page size in tokens.
        progress: told what is being done.
    """

    def __init__(self, options: ServeOptions, model_path: str, page: int, progress: Callable[[str], None]) -> None:
        self.options, self.model_path, self.page, self.progress = options, model_path, page, progress

    def steps(self) -> dict[str, Any]:
        """A long conversation under the budget, against stock vLLM short and ours at the middle length."""
        options, budget = self.options, self.options.budget_tokens
        samples = self._together(
            {
                "stock_short": (options.short_tokens, None),
                "ours_middle": (options.middle_tokens, budget),
                "ours_long": (options.long_tokens, budget),
            }
        )
        return {
            "step_seconds": medians(samples),
            "long_budget_vs_stock_short": as_dict(paired_ratio(samples["ours_long"], samples["stock_short"])),
            "long_vs_middle_same_budget": as_dict(paired_ratio(samples["ours_long"], samples["ours_middle"])),
        }

    def stock_steps(self) -> dict[str, Any]:
        """Stock vLLM long against short."""
        options = self.options
        samples = self._together(
            {"stock_short": (options.short_tokens, None), "stock_long": (options.long_tokens, None)}
        )
        return {
            "step_seconds": medians(samples),
            "stock_long_vs_stock_short": as_dict(paired_ratio(samples["stock_long"], samples["stock_short"])),
        }

    def _together(self, wanted: Mapping[str, tuple[int, int | None]]) -> dict[str, list[float]]:
        """Samples of engines that take turns, each at its length (tokens) and budget."""
        pairs = self.options.pairs
        recipes = {name: self._recipe(budget, tokens, pairs) for name, (tokens, budget) in wanted.items()}
        self.progress(f"decode steps: starting {', '.join(wanted)}")
        with engines_under_test(recipes) as engines:
            self.progress(f"decode steps: {self.options.batch} conversations on each engine")
            self._start_all(engines, wanted, pairs)
            return self._rounds(engines, pairs, "decode steps")

    def lengths(self, budget: int) -> dict[str, Any]:
        """Step time by trace length, for stock vLLM and under one budget, each point against the short context."""
        options = self.options
        pairs, longest = options.length_pairs, max(options.lengths)
        recipes = {
            "reference": self._recipe(None, options.short_tokens, pairs),
            "stock": self._recipe(None, longest, pairs),
            "ours": self._recipe(budget, longest, pairs),
        }
        points = []
        self.progress(f"growth under a budget of {budget} tokens: starting three engines")
        with engines_under_test(recipes) as engines:
            for tokens in options.lengths:
                self.progress(f"growth under a budget of {budget} tokens: conversations of {tokens} tokens")
                wanted = {
                    "reference": (options.short_tokens, None),
                    "stock": (tokens, None),
                    "ours": (tokens, budget),
                }
                self._start_all(engines, wanted, pairs)
                samples = self._rounds(engines, pairs, f"decode steps at {tokens} tokens")
                for engine in engines.values():
                    engine.stop()
                points.append(
                    {
                        "tokens": tokens,
                        "step_seconds": medians(samples),
                        "stock_vs_short": as_dict(paired_ratio(samples["stock"], samples["reference"])),
                        "ours_vs_short": as_dict(paired_ratio(samples["ours"], samples["reference"])),
                        "ours_vs_stock": as_dict(paired_ratio(samples["ours"], samples["stock"])),
                    }
                )
        return {"budget_tokens": budget, "points": points}

    def _rounds(self, engines: Mapping[str, EngineUnderTest], pairs: int, what: str) -> dict[str, list[float]]:
        """Mean seconds of a step, a sample from each engine in each round; the order turns around every round."""
        samples: dict[str, list[float]] = {name: [] for name in engines}
        for engine in engines.values():
            engine.decode(self.options.steps_per_sample)  # warm
        for number in range(pairs):
            self.progress(f"{what}: round {number + 1} of {pairs}")
            for name in list(engines) if number % 2 else list(engines)[::-1]:
                samples[name].append(statistics.fmean(engines[name].decode(self.options.steps_per_sample)))
        return samples

    def _start_all(
        self, engines: Mapping[str, EngineUnderTest], wanted: Mapping[str, tuple[int, int | None]], pairs: int
    ) -> None:
        """Bring all engines to their lengths (tokens, budget) at the same time: nothing is timed yet."""
        with ThreadPoolExecutor(len(wanted)) as threads:
            begun = [threads.submit(self._start, engines[name], tokens, pairs, budget)
                     for name, (tokens, budget) in wanted.items()]  # fmt: skip
            for one in begun:
                one.result()

    def _start(self, engine: EngineUnderTest, tokens: int, pairs: int, budget: int | None) -> None:
        """Bring conversations to a length such that they have it, on average, while they are measured.

        A longer one goes on from a shorter one: with a cached prefix in stock vLLM, in its session here.
        """
        options = self.options
        steps = options.steps_per_sample * (pairs + 1)
        staggered = (options.batch - 1) * -(-tokens // options.chunk_tokens)
        length = tokens - (steps + staggered) // 2
        prompts = [self._prompt(number, length) for number in range(options.batch)]
        hints = [None if budget is None else self._hints(length, n, budget) for n in range(len(prompts))]
        engine.start(prompts, steps + staggered + 8, hints)

    def _prompt(self, number: int, length: int) -> list[int]:
        draw = random.Random(f"{self.options.workload.seed}/{number}")
        return [draw.randrange(100, 20000) for _ in range(length)]

    def _hints(self, length: int, number: int, budget: int) -> RequestHints:
        """A system message, then questions and tool results by turns."""
        edges = [*range(SYSTEM_TOKENS, length, 200), length]
        spans = [Span(0, SYSTEM_TOKENS, "system")]
        for at, (start, end) in enumerate(pairwise(edges)):
            spans.append(Span(start, end, "tool_out" if at % 2 else "user"))
        name = f"agent-{number}"
        return RequestHints(session=name, agent=name, budget_tokens=budget, spans=tuple(spans))

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.page)

    def _recipe(self, budget: int | None, tokens: int, pairs: int) -> EngineRecipe:
        options = self.options
        longest = self._pages(tokens + options.steps_per_sample * (pairs + 2) + 2 * options.batch * 16)
        held = longest if budget is None else min(longest, self._pages(budget))
        return EngineRecipe(
            kind="stock" if budget is None else "memdecay",
            model_path=self.model_path,
            dtype=options.dtype,
            page_size_tokens=self.page,
            chunk_tokens=options.chunk_tokens,
            pool_pages=2 + max(options.batch * held, longest) + 2 * self._pages(options.chunk_tokens),
            max_model_len=longest * self.page,
            max_num_seqs=options.batch,
        )


def medians(samples: Mapping[str, list[float]]) -> dict[str, float]:
    """Median seconds, by name."""
    return {name: round(statistics.median(seconds), 6) for name, seconds in samples.items()}


def as_dict(ratio: PairedRatio) -> dict[str, Any]:
    """A ratio, ready for JSON."""
    return {
        "median": round(ratio.median, 4),
        "interval": [round(ratio.low, 4), round(ratio.high, 4)],
        "pairs": ratio.pairs,
    }
