"""From the parts of ``memdecay bench serve`` to one flat table of figures with their bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from memdecay_adapters.bench.serve_options import ServeOptions
from memdecay_adapters.bench.statistics import MINIMUM_PAIRS

STEP_BOUND = 1.03
"""A long conversation's step under the budget, at most this much of stock vLLM's at the short context."""
GROWTH_BOUND = 1.05
"""The same, at most this much of our own at the middle length."""
THROUGHPUT_BOUND = 2.0
"""Tokens a second on the pool of `BOUND_POOL` percent, at least this many times stock vLLM's."""
BOUND_POOL = 25

Part = Mapping[str, Any]
NOT_MEASURED = "this part was not measured"


@dataclass
class ServeResult:
    """All figures, ready for JSON."""

    values: dict[str, Any] = field(default_factory=dict)
    failed_bounds: list[str] = field(default_factory=list)

    def set_ratio(self, key: str, ratio: Part | None, *, most: float | None = None) -> None:
        """Store a ratio with its interval; null with a reason where it was not measured."""
        if ratio is None:
            self.values[key] = None
            self.values[f"{key}_reason"] = NOT_MEASURED
            return
        self.values[key] = ratio["median"]
        self.values[f"{key}_interval"] = ratio["interval"]
        self.values[f"{key}_pairs"] = ratio["pairs"]
        if most is not None:
            self.check(key, most, ratio["interval"][0] <= most, ratio["pairs"])

    def check(self, key: str, bound: float, met: bool, pairs: int) -> None:
        """Note a bound: the better end of the interval meets it, on enough pairs."""
        met = met and pairs >= MINIMUM_PAIRS
        self.values[f"{key}_bound"] = bound
        self.values[f"{key}_bound_met"] = met
        if not met:
            self.failed_bounds.append(key)


def report(options: ServeOptions, find: Callable[[str], Part | None]) -> ServeResult:
    """Put the parts together.

    Args:
        options: names the parts.
        find: a part's values by name, or None.
    """
    result = ServeResult()
    steps, stock = find("steps") or {}, find("steps-stock") or {}
    result.set_ratio("step_ratio_long_budget_vs_stock_1k", steps.get("long_budget_vs_stock_short"), most=STEP_BOUND)
    result.set_ratio("step_ratio_stock_long_vs_stock_1k", stock.get("stock_long_vs_stock_short"))
    result.set_ratio("step_ratio_long_vs_2k_same_budget", steps.get("long_vs_middle_same_budget"), most=GROWTH_BOUND)
    result.values["step_seconds"] = {**stock.get("step_seconds", {}), **steps.get("step_seconds", {})} or None
    _growth(options, find, result)
    _pools(options, find, result)
    return result


def _growth(options: ServeOptions, find: Callable[[str], Part | None], result: ServeResult) -> None:
    curves, slopes = {}, {}
    for budget in (options.budget_tokens, *options.other_budgets):
        part = find(f"lengths-{budget}")
        if part is None:
            continue
        points = part["points"]
        curves[str(budget)] = points
        slopes[str(budget)] = slope_per_1k(points, "ours_vs_short")
        if budget == options.budget_tokens:
            slopes["stock"] = slope_per_1k(points, "stock_vs_short")
    result.values["step_growth"] = curves or None
    result.values["step_growth_per_1k_tokens"] = slopes or None
    if not curves:
        result.values["step_growth_reason"] = result.values["step_growth_per_1k_tokens_reason"] = NOT_MEASURED


def slope_per_1k(points: Sequence[Part], curve: str) -> float:
    """Growth of the step with the trace, per 1,000 tokens, in parts of stock vLLM's step at the short context.

    Args:
        points: of the growth curve.
        curve: which ratio of theirs; the slope is that of the least squares.
    """
    tokens = np.array([point["tokens"] / 1000 for point in points])
    ratios = np.array([point[curve]["median"] for point in points])
    return round(float(np.polyfit(tokens, ratios, 1)[0]), 5)


def _pools(options: ServeOptions, find: Callable[[str], Part | None], result: ServeResult) -> None:
    values = result.values
    keys = ("throughput_ratio_vs_stock", "throughput_ratio_of_totals", "ttft_ratio_vs_stock")
    for key in keys:
        values[key], values[f"{key}_reason"] = {}, {}
    values["throughput_ratio_vs_stock_interval"], values["ttft_ratio_vs_stock_interval"] = {}, {}
    values["pools"], values["search"], values["other_budgets"] = {}, {}, {}
    for pool in options.pools:
        name = str(pool)
        values["search"][name] = {str(most): find(f"search-{pool}-{most}") for most in options.max_num_seqs}
        values["pools"][name] = part = find(f"pool-{pool}")
        if part is None:
            for key in keys:
                values[key][name], values[f"{key}_reason"][name] = None, NOT_MEASURED
            continue
        values["throughput_ratio_vs_stock"][name] = part["throughput"]["median"]
        values["throughput_ratio_vs_stock_interval"][name] = part["throughput"]["interval"]
        values["throughput_ratio_of_totals"][name] = part["throughput_of_totals"]
        values["ttft_ratio_vs_stock"][name] = part["first_token"]["median"]
        values["ttft_ratio_vs_stock_interval"][name] = part["first_token"]["interval"]
        if pool == BOUND_POOL:
            key, ratio = f"throughput_ratio_vs_stock_{pool}", part["throughput"]
            result.set_ratio(key, ratio)
            result.check(key, THROUGHPUT_BOUND, ratio["interval"][1] >= THROUGHPUT_BOUND, ratio["pairs"])
    for budget in options.other_budgets:
        values["other_budgets"][str(budget)] = find(f"pool-{options.other_budget_pool}-budget-{budget}")
    values["shorter_conversations"] = {
        name.removeprefix("pool-"): find(name) for name in options.shorter_parts() if name.startswith("pool-")
    }
    values["crossover_pool_percent"] = crossover(
        {int(name): ratio for name, ratio in values["throughput_ratio_of_totals"].items() if ratio is not None}
    )
    if values["crossover_pool_percent"] is None:
        values["crossover_pool_percent_reason"] = "no two of the measured pools lie on either side of it"
    values["losing_cases"] = losing_cases(values)
    for key in keys:
        if not values[f"{key}_reason"]:
            del values[f"{key}_reason"]


def crossover(ratios: Mapping[int, float]) -> float | None:
    """The pool, in percent, at which both are equally fast, between two measured pools; None: there is none.

    Args:
        ratios: tokens a second over stock vLLM's, by pool.
    """
    pools = sorted(ratios)
    for small, large in pairwise(pools):
        if ratios[small] >= 1.0 > ratios[large]:
            part = (ratios[small] - 1.0) / (ratios[small] - ratios[large])
            return round(small + part * (large - small), 1)
    return None


def losing_cases(values: Mapping[str, Any]) -> list[str]:
    """Where this engine is slower than stock vLLM, in words."""
    found = []
    for part in (
        *values["pools"].values(),
        *values["other_budgets"].values(),
        *values["shorter_conversations"].values(),
    ):
        if part is None:
            continue
        where = f"pool of {part['percent']} %, budget of {part['budget_tokens']} tokens"
        if part in values["shorter_conversations"].values():
            where += f", conversations of about {part['agent_tokens']} tokens"
        for key, what, loses in (
            ("throughput", "tokens a second", part["throughput"]["median"] < 1.0),
            ("first_token", "time to the first token", part["first_token"]["median"] > 1.0),
        ):
            if loses:
                found.append(f"{where}: {what}, {part[key]['median']} of stock vLLM's")
        stock, ours = ((part.get(side) or {}).get("decode_tokens_per_second_per_agent") for side in ("stock", "ours"))
        if stock and ours and ours < stock:
            found.append(f"{where}: {ours / stock:.2f} of stock vLLM's tokens a second while one agent is answered")
    for budget, points in (values["step_growth"] or {}).items():
        found += [
            f"decode step at {point['tokens']} tokens, budget of {budget} tokens: "
            f"{point['ours_vs_stock']['median']} of stock vLLM's"
            for point in points
            if point["ours_vs_stock"]["median"] > 1.0
        ]
    return found
