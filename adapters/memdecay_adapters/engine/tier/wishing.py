"""Wishes from outside a request: which sessions are meant, and where a message lies in their history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from memdecay_agents.recall.wishes import RecallWish
from memdecay_agents.sessions import SessionId

if TYPE_CHECKING:
    from memdecay_adapters.engine.controller import EvictionController


def wish_for(
    controller: EvictionController,
    tenant: str,
    thread_id: str,
    agent: str | None,
    wish: RecallWish,
    message: Sequence[int],
) -> int:
    """Note a wish for the next turn of a thread's sessions, idle or running.

    Args:
        controller: asked between two steps.
        tenant: whose sessions; no other's are looked at.
        thread_id: of this thread.
        agent: of this agent's path; None: of all of them.
        wish: regions and ranges.
        message: token ids of a text to be found in the history; empty: none.

    Returns:
        In how many sessions something was found to wish for.
    """

    def is_meant(home: SessionId) -> bool:
        return (home.tenant, home.thread_id) == (tenant, thread_id) and agent in (None, home.agent_path)

    if controller.tier is None:
        return 0
    meant = [(one.state, one.token_ids) for one in controller.sessions if is_meant(one.home)]
    meant += [
        (state, np.asarray(tracked.request.all_token_ids, dtype=np.int64))
        for _, tracked, state in controller.running()
        if tracked.retains and is_meant(tracked.home)
    ]
    found = 0
    for state, token_ids in meant:
        whole = wish
        if message and (place := find_text(token_ids, message)) is not None:
            whole = wish + RecallWish(tokens=(place,))
        if whole:
            controller.tier.wish(state, whole)
            found += 1
    return found


def find_text(token_ids: npt.NDArray[np.int64], text_ids: Sequence[int]) -> tuple[int, int] | None:
    """Where a text lies in a history, the newest place; its first and last token may be cut otherwise there.

    Args:
        token_ids: int64 ``[n]``: the history.
        text_ids: of the text on its own.

    Returns:
        A half-open range of tokens; None: it is not there.
    """
    edge = 1 if len(text_ids) > 4 else 0
    core = np.asarray(text_ids[edge : len(text_ids) - edge], dtype=np.int64)
    if not core.size or core.size > token_ids.size:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(token_ids, core.size)
    places = np.flatnonzero((windows == core).all(axis=1))
    if not places.size:
        return None
    first = int(places[-1])
    return max(first - edge, 0), min(first + core.size + edge, token_ids.size)
