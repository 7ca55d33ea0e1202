"""What a page tells that stands nowhere else: the most surprising quarter page of tokens on it and close beside it.

    tokens    ...[ previous page ####][ page ................ ][#### next page ]...        #: a quarter page, counted in
    a page's information: mean rank of the best quarter page of these tokens

A sentence that matters seldom lies on one page, and half of it is of no use: the page that holds its plain half stays
with the one that holds the names. Neighbours that were evicted, or that cannot be, count nothing.
"""

from __future__ import annotations

import numpy as np

from memdecay_agents.arrays import FloatArray
from memdecay_agents.pages import PageView

PARTS_OF_PAGE = 4
"""The best quarter of a page counts, and a quarter page on either side is looked at."""


def page_information(view: PageView) -> FloatArray:
    """Information of each page, float32 [P] in [0, 1]; ranks are among the tokens of evictable pages.

    A page that is not evictable has what its neighbours lend it.
    """
    few = view.page_size_tokens // PARTS_OF_PAGE
    ranks = view.surprisal_rank
    adjacent = np.diff(view.page_index) == 1
    before = np.zeros((view.n_pages, few), dtype=np.float32)
    after = np.zeros_like(before)
    before[1:][adjacent] = ranks[:-1, -few:][adjacent]
    after[:-1][adjacent] = ranks[1:, :few][adjacent]
    around = np.concatenate([before, ranks, after], axis=1)
    best = np.partition(around, -few, axis=1)[:, -few:]
    return np.asarray(best.mean(axis=1), dtype=np.float32)
