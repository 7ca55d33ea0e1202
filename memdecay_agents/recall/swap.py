"""Which pages change places: the best in host memory against the worst on the device, under the same budget."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memdecay_agents.arrays import BoolArray, IndexArray
from memdecay_agents.errors import ConfigError
from memdecay_agents.recall.estimator import EvidenceArray

LEAST_SHARE = 0.3
"""Of the best page's evidence, that a page has which comes back; chosen in EVALUATION.md."""
RECENT_SHARE = 0.75
"""Of the pages that stay where others can come back, those that are the newest ones'; chosen in EVALUATION.md."""


class SwapPlan(NamedTuple):
    """What comes in and what goes out; both empty: nothing changes and nothing is computed again."""

    bring_in: IndexArray
    """int64: indices into the host evidence, the best first."""
    send_out: IndexArray
    """int64: indices into the retained evidence, the worst first, but those that go last behind the others; at most as
    many."""


def plan_swap(
    host_evidence: EvidenceArray,
    retained_evidence: EvidenceArray,
    max_pages: int,
    *,
    least_evidence: float = 0.0,
    free_pages: int = 0,
    last: BoolArray | None = None,
) -> SwapPlan:
    """Plan a swap.

    The best host page replaces the worst retained one while its evidence is higher, at most ``max_pages`` times. Of
    all swaps of so many pages none leaves more evidence on the device. Equal evidence swaps nothing; among equals the
    lower index goes first.

    Args:
        host_evidence: float64 [n_host], from the same ``page_evidence`` call as the other.
        retained_evidence: float64 [n_retained]: unpinned pages on the device that may leave.
        max_pages: most pages that come in.
        least_evidence: a page that has less does not come in.
        free_pages: pages that may come in without a victim, because the budget has room.
        last: bool [n_retained]: pages that leave only for what no other page makes room for; None: none is such.

    Raises:
        ConfigError: a negative number.
    """
    if max_pages < 0 or free_pages < 0 or not least_evidence >= 0.0:
        raise ConfigError(
            where="recall",
            rule=f"max_pages {max_pages}, free_pages {free_pages}, least_evidence {least_evidence}: one is negative",
            remedy="Give numbers from 0 on.",
        )
    best = np.argsort(-host_evidence, kind="stable")[:max_pages]
    best = best[host_evidence[best] >= least_evidence]
    free = min(free_pages, int((host_evidence[best] > 0.0).sum()))
    coming, leaving = free, []
    late = np.zeros(retained_evidence.size, dtype=np.bool_) if last is None else last
    for group in (np.flatnonzero(~late), np.flatnonzero(late)):
        worst = group[np.argsort(retained_evidence[group], kind="stable")]
        pairs = min(best.size - coming, worst.size)
        gains = host_evidence[best[coming : coming + pairs]] > retained_evidence[worst[:pairs]]
        swapped = int(gains.sum())  # host falls and retained rises, so that gains come first
        leaving.append(worst[:swapped])
        coming += swapped
    return SwapPlan(best[:coming], np.concatenate(leaving))
