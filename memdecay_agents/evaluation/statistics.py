"""Intervals for counts, and paired comparisons that respect that facts of one trace belong together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

Z_95 = 1.959963984540054
RESAMPLES = 2000


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def proportion(successes: int, n: int) -> Interval:
    """k of n with Wilson's score interval; of nothing: 0 to 1."""
    if n == 0:
        return Interval(math.nan, 0.0, 1.0)
    p, z2 = successes / n, Z_95 * Z_95
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return Interval(p, max(0.0, centre - half), min(1.0, centre + half))


def bootstrap(clusters: int, statistic: Callable[[np.ndarray], float], *, seed: int = 0) -> Interval:
    """A statistic of clusters with its percentile interval.

    Args:
        clusters: how many there are.
        statistic: its value for cluster indices, int64 [clusters], drawn with replacement.
        seed: of the draws.
    """
    value = statistic(np.arange(clusters))
    draw = np.random.default_rng(seed)
    drawn = [statistic(draw.integers(0, clusters, clusters)) for _ in range(RESAMPLES)]
    finite = [v for v in drawn if math.isfinite(v)]
    if clusters < 2 or not finite:
        return Interval(value, -math.inf, math.inf)
    low, high = np.percentile(finite, [2.5, 97.5])
    return Interval(value, float(low), float(high))


def paired_difference(
    ours: Mapping[tuple[str, str], bool], theirs: Mapping[tuple[str, str], bool], *, seed: int = 0
) -> Interval:
    """Difference of two rates over the facts that both have, by (trace, fact); whole traces are resampled."""
    shared = sorted(ours.keys() & theirs.keys())
    traces = sorted({trace for trace, _ in shared})
    place = {trace: number for number, trace in enumerate(traces)}
    gain, count = np.zeros(len(traces)), np.zeros(len(traces))
    for key in shared:
        gain[place[key[0]]] += int(ours[key]) - int(theirs[key])
        count[place[key[0]]] += 1
    if not shared:
        return Interval(math.nan, -math.inf, math.inf)
    return bootstrap(len(traces), lambda drawn: float(gain[drawn].sum() / count[drawn].sum()), seed=seed)


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean of a few numbers with a normal interval of their spread."""
    array = np.asarray(values, dtype=np.float64)
    if not array.size:
        return Interval(math.nan, -math.inf, math.inf)
    half = Z_95 * float(array.std(ddof=1)) / math.sqrt(array.size) if array.size > 1 else math.inf
    return Interval(float(array.mean()), float(array.mean()) - half, float(array.mean()) + half)
