"""The newest pages stay where older ones can come back: what is newest, a turn needs without asking for it.

    order     policy's: lowest ............................ highest
    with it   lowest older pages .. highest older | newest, as many as their share of what stays, in the policy's order

Superseded pages go first all the same, where the policy heeds that.
"""

from __future__ import annotations

import numpy as np

from memdecay_agents.arrays import IndexArray
from memdecay_agents.pages import PageView
from memdecay_agents.policies.base import Policy


def newest_last(
    order: IndexArray, view: PageView, policy: Policy, staying_pages: int, recent_share: float
) -> tuple[IndexArray, int]:
    """An order in which the newest pages go last.

    Args:
        order: int64 [E], the policy's: the first to evict first.
        view: the held pages that it is of.
        policy: whose order it is.
        staying_pages: how many of these pages stay.
        recent_share: of those, the newest that go after all others; 0: the order stays as it is.

    Returns:
        The order, and how many of the newest stand at its end.
    """
    if not recent_share or staying_pages <= 0:
        return order, 0
    eligible = order
    if policy.heeds_superseded and policy.config.superseded_factor < 1.0:
        eligible = order[~view.superseded[np.searchsorted(view.page_index, order)]]
    n_newest = min(int(recent_share * staying_pages), eligible.size)
    if not n_newest:
        return order, 0
    last = np.isin(order, np.partition(eligible, -n_newest)[-n_newest:])
    return np.concatenate([order[~last], order[last]]), n_newest
