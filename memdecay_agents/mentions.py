"""Pages that hold what is named later: mention has returned to it, so its sentence is worth keeping whole.

    page        0                      1                2                            later
    text   ... The | strap colour | of crate 7 is | purple. ...         Do not forget the strap colour.
                     ^ named later ^
    close       0                      1                1

A name's own page seldom holds all that is said of it, so pages within CLOSE_TOKENS of it count as well. Of names only
the telling ones count (`memdecay_agents.surprisal`), and of their tokens those among the TELLING_PART that says most.
"""

from __future__ import annotations

import numpy as np

from memdecay_agents.arrays import BoolArray
from memdecay_agents.pages import PageView

CLOSE_TOKENS = 8
"""How far from a name that is named later a page may begin or end."""
TELLING_PART = 0.05
"""Of the tokens of evictable pages: a name's tokens have to be among this part, by surprisal."""


def close_to_mentioned(view: PageView) -> BoolArray:
    """Whether each page holds a token of a name that is named later, or ends or begins close to one; bool [P].

    Names on pages that are not evictable, or no longer held, say nothing.
    """
    named = view.named_later & view.evictable[:, None]
    if not named.any():
        return np.zeros(view.n_pages, dtype=np.bool_)
    named &= view.surprisal_rank >= 1.0 - TELLING_PART
    at = view.token_index[named]  # ascending
    first = view.page_index * view.page_size_tokens - CLOSE_TOKENS
    last = first + view.page_size_tokens - 1 + 2 * CLOSE_TOKENS
    return np.searchsorted(at, first) < np.searchsorted(at, last, side="right")
