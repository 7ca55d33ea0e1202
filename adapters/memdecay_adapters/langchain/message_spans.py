"""Which tokens of a prompt are which message's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from memdecay_adapters.langchain.tokens import Starts


def message_spans(
    n_messages: int,
    sources: Sequence[Sequence[int]],
    entries: Mapping[int, tuple[int, int]],
    starts: Starts,
) -> tuple[tuple[int, int], ...]:
    """Tokens [first, past the last) of each message; a token belongs where its first character stands.

    Args:
        n_messages: how many there are.
        sources: places of the messages that each entry of the template was made of.
        entries: characters of each entry in the rendered text.
        starts: int64 [n]: first character of each token, ascending.
    """
    found: dict[int, tuple[int, int]] = {}
    for entry, places in enumerate(sources):
        if entry not in entries:
            continue
        start, end = np.searchsorted(starts, entries[entry]).tolist()
        for place in places:
            first, last = found.get(place, (start, end))
            found[place] = (min(first, start), max(last, end))
    return tuple(found.get(place, (0, 0)) for place in range(n_messages))
