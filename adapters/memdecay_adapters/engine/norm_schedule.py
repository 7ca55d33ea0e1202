"""When key norms are measured: before a page's are needed, and then for many requests in one step.

    page      |<------- page -------->|<--- recent_tokens --->|
              first token            full                     may be evicted: from here on its norms count
                                      ^-- may be measured --^
                                                       ^-- has to be: the next measurement may come too late

A policy ranks norms among evictable pages only, so that when they are read changes nothing. Reading them in a layer has
a price of its own, however few they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from memdecay_agents.config import MemDecayConfig
from memdecay_agents.token_state import TokenState

_LAG_STEPS = 2
"""A measurement is taken in with its step's output; by then a later step or two have been scheduled."""


def norms_to_measure(
    decoding: Mapping[str, TokenState], prefilling: Iterable[tuple[str, TokenState]], config: MemDecayConfig
) -> dict[str, int]:
    """Whose key norms a step that is measured reads, and from which token on.

    Args:
        decoding: the tokens of measured requests that compute one position in the step, this one counted.
        prefilling: the same of those that compute more: theirs are read at once.
        config: page size, recent window, stride.

    Returns:
        Request id to the first token whose norm is not known.
    """
    page = config.page_size_tokens
    wanted = {request_id: tokens.normed_tokens for request_id, tokens in prefilling}
    ends = {request_id: (tokens.normed_tokens // page + 1) * page for request_id, tokens in decoding.items()}
    margin = config.measure_every_steps + _LAG_STEPS - config.recent_tokens
    late = {request_id for request_id, end in ends.items() if end <= decoding[request_id].computed_tokens + margin}
    if late:
        for request_id, end in ends.items():
            if request_id in late or end <= decoding[request_id].computed_tokens:
                wanted[request_id] = decoding[request_id].normed_tokens
    return wanted
