"""Soft quotas: each region that is present has a share of the evictable budget to itself.

    pages that go first  |  outside any quota, by score      |  inside their region's quota, by score  |  last

A quota is a floor, not a ceiling: what is left of the budget goes to the best pages of any region.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memdecay_agents.arrays import BoolArray, FloatArray, IndexArray, RegionArray

PAGES_FOR_BONUS = 2
"""A quota of fewer pages gives its region no bonus: one page here and one there seldom hold a whole fact."""


def quota_pages(region_weight: npt.NDArray[np.float64], present: BoolArray, budget_pages: int) -> IndexArray:
    """Pages that each region has to itself, int64 [R]: floor(budget * w_r / sum of w of regions present).

    Args:
        region_weight: float64 [R].
        present: bool [R]: regions that hold an evictable page.
        budget_pages: evictable pages that may stay, at least 0.
    """
    weight = np.where(present, region_weight, 0.0)
    total = weight.sum()
    if total <= 0.0 or budget_pages <= 0:
        return np.zeros(weight.shape, dtype=np.int64)
    # the small constant keeps an exact share from falling below its integer by rounding
    return np.asarray(np.floor(budget_pages * (weight / total) + 1e-9), dtype=np.int64)


def inside_quota(
    page_region: RegionArray, page_scores: FloatArray, eligible: BoolArray, quota: IndexArray
) -> BoolArray:
    """The best-scored eligible pages of each region, as many as its quota holds; bool [E].

    Args:
        page_region: int8 [E] region of each evictable page, pages in ascending order.
        page_scores: float32 [E]; of equal scores the later page is taken first, since it goes last.
        eligible: bool [E]: False for pages that have no claim to a quota (superseded ones).
        quota: int64 [R] pages.
    """
    n = page_region.shape[0]
    best_first = np.lexsort((np.arange(n)[::-1], -page_scores, page_region, ~eligible))
    regions = page_region[best_first].astype(np.int64)
    place = np.arange(n)
    first = np.searchsorted(regions[: int(eligible.sum())], np.arange(quota.shape[0]))
    inside = np.zeros(n, dtype=np.bool_)
    inside[best_first] = eligible[best_first] & (place - first[regions] < quota[regions])
    return inside
