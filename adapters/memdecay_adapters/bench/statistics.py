"""Paired comparisons on a noisy machine: the median of interleaved ratios and its confidence interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MINIMUM_PAIRS = 15
"""Fewer pairs make no claim."""


@dataclass(frozen=True)
class PairedRatio:
    """Median of ``ours / stock`` over interleaved pairs."""

    median: float
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""
    pairs: int
    confidence: float
    """Probability that the interval covers the median; at least 0.95 where the pairs allow it."""

    def within(self, bound: float) -> bool:
        """Whether an upper bound is met: by the better end of the interval, and on enough pairs."""
        return self.pairs >= MINIMUM_PAIRS and self.low <= bound


def paired_ratio(ours: Sequence[float], stock: Sequence[float], confidence: float = 0.95) -> PairedRatio:
    """Compare paired measurements; the interval comes from order statistics and assumes no distribution.

    The i-th smallest and the i-th largest of n ratios enclose the median with probability
    ``1 - 2 * P(Binomial(n, 1/2) < i)``; the largest i with at least ``confidence`` is taken.

    Args:
        ours: seconds, one a pair.
        stock: seconds, of the same pairs.
        confidence: least probability that the interval covers the median.

    Raises:
        ValueError: no pairs, different lengths, or a measurement that is not above 0.
    """
    if len(ours) != len(stock) or not ours:
        raise ValueError(f"{len(ours)} and {len(stock)} measurements are no pairs")
    if min(*ours, *stock) <= 0:
        raise ValueError("a duration is not above 0")
    ratios = sorted(a / b for a, b in zip(ours, stock, strict=True))
    count = len(ratios)
    rank, covered = 1, _coverage(count, 1)
    while 2 * (rank + 1) <= count and _coverage(count, rank + 1) >= confidence:
        rank += 1
        covered = _coverage(count, rank)
    middle = (ratios[(count - 1) // 2] + ratios[count // 2]) / 2
    return PairedRatio(middle, ratios[rank - 1], ratios[count - rank], count, covered)


def _coverage(count: int, rank: int) -> float:
    below: int = sum(math.comb(count, k) for k in range(rank))
    return float(1 - 2 * below / 2**count)
