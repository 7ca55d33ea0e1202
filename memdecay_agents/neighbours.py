"""What a page gains from a neighbour that is held: alone it saves no fact of more than a page.

    held pages    0  1  .  3  .  5  6  7
    gain          1  1     0     1  1  1     times min(1, c / E) ** 2, E: evictable pages

So it counts where few pages may stay. Of many, most have neighbours, and short facts want the best pages one by one.
"""

from __future__ import annotations

import numpy as np

from memdecay_agents.arrays import FloatArray
from memdecay_agents.pages import PageView


def neighbour_gain(view: PageView, few_pages: float) -> FloatArray:
    """What each page gains, float32 [P] in [0, 1].

    Args:
        view: the held pages; pinned and protected ones are neighbours too.
        few_pages: c; up to so many evictable pages the gain is whole.
    """
    gain = np.zeros(view.n_pages, dtype=np.float32)
    n_evictable = int(np.count_nonzero(view.evictable))
    if few_pages > 0.0 and n_evictable:
        beside = np.flatnonzero(np.diff(view.page_index) == 1)
        gain[beside] = gain[beside + 1] = min(1.0, few_pages / n_evictable) ** 2
    return gain
