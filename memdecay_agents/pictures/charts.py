"""What the pictures show of one session, as numbers of bounded size: both the PNG and the page draw from these.

Counts are tokens of whole pages. Nothing is estimated: with more pages than ``MOST_ROWS`` neighbouring pages share a
row, and with many events times are rounded to a coarser grid; totals stay exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from memdecay_agents.pictures.history import SessionHistory
from memdecay_agents.pictures.lives import PageLives, page_lives

MOST_ROWS = 256
MOST_STEPS = 8000
"""Stretches of all rows together."""
MOST_MARKS = 4000
MOST_POINTS = 800
"""Points of the memory curve."""


@dataclass(frozen=True)
class Row:
    """Neighbouring pages over time; usually a single one."""

    first_page: int
    end_page: int
    region: str
    """Of most of its pages."""
    steps: list[tuple[int, int, int, int, int]]
    """Start and end time, then pages held, evicted and on the host."""
    at_end: tuple[int, int, int]
    """Pages held, evicted and on the host at the very end, what happened in that moment included."""


@dataclass(frozen=True)
class Mark:
    """Pages of one row that left (or came back) at one time, for one reason."""

    at: int
    row: int
    pages: int
    reason: str
    turn: int
    region: str
    score: float | None
    """None: several pages, or unknown."""


@dataclass(frozen=True)
class MemoryCurve:
    """Tokens in the cache over time: from each time on until the next."""

    at: list[int]
    held: dict[str, list[int]]
    """By region."""
    host: list[int]
    trace: list[int]
    """What the cache would hold without eviction."""


@dataclass(frozen=True)
class SessionChart:
    """One session's pictures."""

    session: str
    name: str
    """What tells it from the others of the picture: its agent, and its session where an agent has several."""
    page_size_tokens: int
    budget_tokens: int | None
    end_at: int
    """The whole time, in tokens computed."""
    pages: int
    pages_per_row: int
    time_grid: int
    """Times in rows and marks are rounded up to multiples of it; 1: exact."""
    rows: list[Row]
    marks: list[Mark]
    rewinds: list[int]
    memory: MemoryCurve
    events_by_reason: dict[str, int] = field(default_factory=dict)
    """Pages."""
    evicted_by_region: dict[str, int] = field(default_factory=dict)
    """Pages."""
    held_at_end: dict[str, int] = field(default_factory=dict)
    """Tokens by region."""
    peak_tokens: int = 0


def session_charts(sessions: Sequence[SessionHistory]) -> list[SessionChart]:
    """Make the charts of one picture."""
    agents = Counter(session.agent for session in sessions)
    return [
        session_chart(session, session.agent if agents[session.agent] == 1 else _with_session(session))
        for session in sessions
    ]


def _with_session(session: SessionHistory) -> str:
    _, _, within_tenant = session.session.partition("/")
    return f"{session.agent} ({within_tenant or session.session})"


def session_chart(session: SessionHistory, name: str = "") -> SessionChart:
    """Make one session's chart, with its agent as its name by default."""
    lives = page_lives(session)
    pages = session.total_pages
    per_row = max(1, -(-pages // MOST_ROWS))
    grid = 1
    while True:
        rows = list(_rows(lives, pages, per_row, grid))
        marks = list(_marks(lives, per_row, grid))
        if grid > lives.end_at or (sum(len(row.steps) for row in rows) <= MOST_STEPS and len(marks) <= MOST_MARKS):
            break
        grid = max(grid * 2, lives.end_at // 1024)
    memory, peak, at_end = _memory(lives, session.page_size_tokens)
    left = [timed.event for timed in lives.events if timed.event.state.value != "held"]
    return SessionChart(
        session=session.session,
        name=name or session.agent or "(no name)",
        page_size_tokens=session.page_size_tokens,
        budget_tokens=session.budget_tokens,
        end_at=lives.end_at,
        pages=pages,
        pages_per_row=per_row,
        time_grid=grid,
        rows=rows,
        marks=marks,
        rewinds=list(lives.rewinds),
        memory=memory,
        events_by_reason=dict(Counter(timed.event.reason for timed in lives.events)),
        evicted_by_region=dict(Counter(event.region for event in left)),
        held_at_end=at_end,
        peak_tokens=peak,
    )


def _rows(lives: PageLives, pages: int, per_row: int, grid: int) -> Iterator[Row]:
    start = -(-lives.start // grid) * grid
    end = np.where(lives.end >= lives.end_at, lives.end_at, -(-lives.end // grid) * grid)
    row_of = lives.page // per_row
    order = np.lexsort((start, row_of))
    bounds = np.searchsorted(row_of[order], np.arange(-(-pages // per_row) + 1))
    for row in range(len(bounds) - 1):
        mine = order[bounds[row] : bounds[row + 1]]
        first, last = row * per_row, min((row + 1) * per_row, pages)
        region = Counter(lives.region[first:last]).most_common(1)[0][0]
        held, evicted, host = (int((lives.final[first:last] == state).sum()) for state in range(3))
        steps = list(_steps(start[mine], end[mine], lives.state[mine]))
        yield Row(first, last, region, steps, (held, evicted, host))


def _steps(start: np.ndarray, end: np.ndarray, state: np.ndarray) -> Iterator[tuple[int, int, int, int, int]]:
    """Counts by state between the times at which they change; equal neighbours are one."""
    times = np.unique(np.concatenate([start, end]))
    if times.size < 2:
        return
    change = np.zeros((times.size, 3), dtype=np.int64)
    np.add.at(change, (np.searchsorted(times, start), state), 1)
    np.add.at(change, (np.searchsorted(times, end), state), -1)
    counts = change.cumsum(axis=0)
    began, before = int(times[0]), counts[0]
    for index in range(1, times.size):
        if index == times.size - 1 or np.any(counts[index] != before):
            if before.any():
                held, evicted, host = before.tolist()
                yield began, int(times[index]), held, evicted, host
            began, before = int(times[index]), counts[index]


def _marks(lives: PageLives, per_row: int, grid: int) -> Iterator[Mark]:
    found: dict[tuple[int, int, str], list[int]] = {}
    for index, timed in enumerate(lives.events):
        key = (-(-timed.at // grid) * grid, timed.event.page // per_row, timed.event.reason)
        found.setdefault(key, []).append(index)
    for (at, row, reason), indices in found.items():
        event = lives.events[indices[-1]].event
        score = event.score if len(indices) == 1 else None
        yield Mark(min(at, lives.end_at), row, len(indices), reason, event.turn, event.region, score)


def _memory(lives: PageLives, page_size_tokens: int) -> tuple[MemoryCurve, int, dict[str, int]]:
    regions = list(dict.fromkeys(lives.region)) or [""]
    index = {name: number for number, name in enumerate(regions)}
    by_page = np.asarray([index[name] for name in lives.region], dtype=np.int64)
    times = np.unique(np.concatenate([lives.start, lives.end, [0, lives.end_at]]))
    # one column a region for what is held, one for the host, one for the whole trace
    change = np.zeros((times.size, len(regions) + 2), dtype=np.int64)
    column = np.where(lives.state == 0, by_page[lives.page], len(regions))
    present = lives.state != 1
    for at, sign in ((np.searchsorted(times, lives.start), 1), (np.searchsorted(times, lives.end), -1)):
        np.add.at(change, (at[present], column[present]), sign)
        np.add.at(change, (at, np.full(at.shape, len(regions) + 1)), sign)
    tokens = change.cumsum(axis=0) * page_size_tokens
    # all stretches end at the end: what is held then, after what happened in that moment, is the final state
    for state, target in ((lives.final == 0, by_page), (lives.final == 2, np.full(by_page.shape, len(regions)))):
        tokens[-1, : len(regions) + 1] += page_size_tokens * np.bincount(target[state], minlength=len(regions) + 1)
    tokens[-1, -1] = page_size_tokens * np.count_nonzero(lives.final >= 0)
    total = tokens[:, : len(regions)].sum(axis=1)
    chosen = _chosen(times, total)
    curve = MemoryCurve(
        at=times[chosen].tolist(),
        held={name: tokens[chosen, number].tolist() for number, name in enumerate(regions)},
        host=tokens[chosen, len(regions)].tolist(),
        trace=tokens[chosen, len(regions) + 1].tolist(),
    )
    at_end = {name: int(tokens[-1, number]) for number, name in enumerate(regions) if tokens[-1, number]}
    return curve, int(total.max()), at_end


def _chosen(times: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Points to draw: all of them, or of each of many bins of time the highest and the last."""
    if times.size <= MOST_POINTS:
        return np.arange(times.size)
    bins = np.minimum(times * (MOST_POINTS // 2 - 1) // max(int(times[-1]), 1), MOST_POINTS // 2 - 1)
    last = np.flatnonzero(np.append(np.diff(bins) > 0, True))
    first = np.concatenate([[0], last[:-1] + 1])
    highest = [int(a + np.argmax(total[a : b + 1])) for a, b in zip(first, last, strict=True)]
    return np.unique(np.concatenate([[0], highest, last])).astype(np.int64)
