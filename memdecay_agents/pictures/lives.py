"""The life of every page on one line of time, from a session's events.

    page 0   |======================================    held
    page 1      |=============x- - - - - - - - - - -    held, evicted
    page 2         |======================|..|======    held, on the host, held again
             time: tokens that the session has computed

A rewind takes the count of tokens back; time goes on. A session export knows the rewinds. A ledger alone does not: one
is seen where the count falls or a page leaves a second time, and is taken to go back no further than that shows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

import numpy as np
import numpy.typing as npt

from memdecay_agents.pictures.history import PageEvent, PageState, Rewind, SessionHistory
from memdecay_agents.pictures.palette import UNKNOWN_REGION

STATES = (PageState.held, PageState.evicted, PageState.host)
"""By code."""
_CODE = {state: code for code, state in enumerate(STATES)}
_Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TimedEvent:
    """An event on the line of time."""

    at: int
    event: PageEvent


@dataclass(frozen=True, eq=False)
class PageLives:
    """S stretches of time, each of one page in one state; times are tokens computed, rewinds included."""

    page: _Times
    """int64 [S]."""
    start: _Times
    """int64 [S], inclusive."""
    end: _Times
    """int64 [S], exclusive, above ``start``."""
    state: npt.NDArray[np.int8]
    """int8 [S]: index in ``STATES``."""
    region: tuple[str, ...]
    """By page."""
    events: tuple[TimedEvent, ...]
    rewinds: tuple[int, ...]
    """Times at which the session went back."""
    end_at: int
    """The whole time."""
    final: npt.NDArray[np.int8]
    """int8 [pages]: state at the very end, what happened in that moment included; -1: not begun."""


class _Builder:
    def __init__(self, session: SessionHistory) -> None:
        self.size = session.page_size_tokens
        pages = session.total_pages
        self.first_token = np.arange(pages, dtype=np.int64) * self.size
        self.since = self.first_token.copy()
        self.state = np.zeros(pages, dtype=np.int8)
        self.parts: list[tuple[_Times, _Times, _Times, npt.NDArray[np.int8]]] = []
        self.rewinds: list[int] = []
        self.offset = self.now = self.tokens = 0

    def close(self, pages: _Times) -> None:
        """End the current stretch of these pages."""
        began = pages[self.since[pages] < self.now]
        ends = np.full(began.size, self.now, dtype=np.int64)
        self.parts.append((began, self.since[began], ends, self.state[began]))

    def change(self, page: int, state: PageState) -> None:
        self.close(np.asarray([page]))
        self.since[page], self.state[page] = self.now, _CODE[state]

    def rewind(self, tokens: int) -> None:
        """Pages wholly from ``tokens`` on are dropped, and begin again as the count grows."""
        self.offset = self.now - tokens
        dropped = np.flatnonzero(self.first_token >= tokens)
        self.close(dropped)
        self.since[dropped] = self.first_token[dropped] + self.offset
        self.state[dropped] = 0
        self.rewinds.append(self.now)
        self.tokens = tokens

    def go_back(self, known: Rewind) -> None:
        """A rewind that is known."""
        self.advance(known.from_tokens, ())
        self.rewind(known.to_tokens)

    def advance(self, tokens: int, came_back: Sequence[int]) -> None:
        """Go on to a count of tokens; pages that must have come back by then show a rewind."""
        base = tokens if tokens < self.tokens else None
        if came_back:
            base = min(self.tokens if base is None else base, min(came_back) * self.size)
        if base is not None:
            self.rewind(base)
        self.now, self.tokens = self.offset + tokens, tokens


def page_lives(session: SessionHistory) -> PageLives:
    """Lay a session's events on the line of time."""
    build = _Builder(session)
    timed = []
    known = [rewind.after_events for rewind in session.rewinds]
    rewinds = iter(session.rewinds)

    def key(numbered: tuple[int, PageEvent]) -> tuple[int, int, int]:
        number, event = numbered
        return bisect_right(known, number), event.at_tokens, event.turn

    done = 0
    for (so_far, tokens, _), group in groupby(enumerate(session.events), key=key):
        batch = [event for _, event in group]
        for rewind in islice(rewinds, so_far - done):
            build.go_back(rewind)
        done = so_far
        build.advance(tokens, list(_left_twice(batch, build.state)))
        for event in batch:
            if _CODE[event.state] != build.state[event.page]:
                build.change(event.page, event.state)
            timed.append(TimedEvent(build.now, event))
    for rewind in rewinds:
        build.go_back(rewind)
    held = np.zeros(session.total_pages, dtype=np.bool_)
    for first, end in session.held or ():
        held[first:end] = True
    build.advance(session.computed_tokens, np.flatnonzero(held & (build.state == 1)).tolist())
    if session.held is not None:  # left before the ledger's oldest entry: when is unknown
        build.state[(build.state == 0) & ~held] = 1
    final = np.where((build.first_token < build.tokens) | held, build.state, -1).astype(np.int8)
    build.close(np.arange(session.total_pages, dtype=np.int64))
    page, start, end, state = (np.concatenate(column) for column in zip(*build.parts, strict=True))
    return PageLives(
        page,
        start,
        end,
        state,
        tuple(_regions(session)),
        tuple(timed),
        tuple(dict.fromkeys(build.rewinds)),
        build.now,
        final,
    )


def _left_twice(batch: Sequence[PageEvent], state: npt.NDArray[np.int8]) -> Iterator[int]:
    for event in batch:
        if event.state is not PageState.held and state[event.page] == 1:
            yield event.page


def _regions(session: SessionHistory) -> list[str]:
    regions = [UNKNOWN_REGION] * session.total_pages
    for event in session.events:
        regions[event.page] = event.region
    for run in session.regions:
        regions[run.first : run.end] = [run.region] * (run.end - run.first)
    return regions
