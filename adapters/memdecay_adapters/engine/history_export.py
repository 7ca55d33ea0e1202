"""A session export: what pictures are drawn from. Looked at between two steps, put together outside of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memdecay_agents.config import MemDecayConfig
from memdecay_agents.ledger import Ledger
from memdecay_agents.ledger_entry import EvictionReason, LedgerEntry
from memdecay_agents.pages import build_page_view
from memdecay_agents.pictures.history import (
    MemoryHistory,
    PageRun,
    Rewind,
    SessionHistory,
    events_of,
    history_of_ledger,
    priorities_of,
)
from memdecay_agents.session_state import SessionState
from memdecay_agents.sessions import SessionId

if TYPE_CHECKING:
    from memdecay_adapters.engine.controller import EvictionController


class SessionSight(NamedTuple):
    """One session that holds pages, as plain values."""

    key: str
    agent: str
    computed_tokens: int
    budget_pages: int | None
    page_regions: tuple[str, ...]
    """Of every page of the trace."""
    held: tuple[int, ...]
    """Pages, ascending."""
    booked_before: int
    """Evictions of earlier sessions of this key."""
    booked: int
    """Evictions of this key."""
    rewinds: tuple[tuple[int, int, int], ...]
    """See `SessionState.rewinds`."""
    away: tuple[int, ...] = ()
    """Pages in host memory."""


def sight(controller: EvictionController) -> tuple[list[SessionSight], Ledger]:
    """What has to be read on the scheduler's thread: the live sessions, and a copy of the ledger."""
    states = [state for _, _, state in controller.running()]
    states += [session.state for session in controller.sessions]
    away = {} if controller.tier is None else {state.key: controller.tier.catalogue.away(state.key) for state in states}
    sights = [_sight_of(state)._replace(away=tuple(page.page for page in away.get(state.key, ()))) for state in states]
    return sights, controller.ledger.copy()


def export_history(
    sessions: Sequence[SessionSight], ledger: Ledger, config: MemDecayConfig, model: str, tenant: str | None = None
) -> MemoryHistory:
    """Put a history together.

    Sessions that have ended are known by the ledger alone: of their pages that never left the region is unknown.

    Args:
        sessions: from `sight`.
        ledger: from `sight`.
        config: in force.
        model: what the user calls the model.
        tenant: only this tenant's sessions; None: all.
    """
    entries: dict[str, list[LedgerEntry]] = {}
    for entry in ledger.moves():
        entries.setdefault(entry.session, []).append(entry)
    live = {seen.key: _history_of(seen, entries.get(seen.key, []), config.page_size_tokens) for seen in sessions}
    ended = history_of_ledger(entry for key, mine in entries.items() if key not in live for entry in mine)
    found = [*live.values(), *ended.sessions]
    return MemoryHistory(
        model=model,
        policy=config.policy,
        clock_unit=config.clock_unit,
        decay_form=config.decay_form,
        priorities=priorities_of(config),
        sessions=tuple(one for one in found if tenant in (None, SessionId.parse(one.session).tenant)),
    )


def _sight_of(state: SessionState) -> SessionSight:
    tokens, page = state.tokens, state.config.page_size_tokens
    held = state.held_pages
    pages = max(-(-tokens.computed_tokens // page), held[-1] + 1 if held else 0)
    view = build_page_view(tokens, np.arange(pages), tokens.computed_tokens, state.config)
    names = tuple(tokens.table.names[index] for index in view.page_region.tolist())
    return SessionSight(
        state.key, state.agent, tokens.computed_tokens, state.budget_pages, names, held, state.booked_before,
        state.ledger.summary(state.key).evicted, tuple(state.rewinds),
    )  # fmt: skip


def _history_of(seen: SessionSight, entries: Sequence[LedgerEntry], page_size_tokens: int) -> SessionHistory:
    runs, first = [], 0
    for region, group in itertools.groupby(seen.page_regions):
        end = first + sum(1 for _ in group)
        runs.append(PageRun(first=first, end=end, region=region))
        first = end
    # neighbours have one difference between page and place
    held = [list(group) for _, group in itertools.groupby(enumerate(seen.held), key=lambda pair: pair[1] - pair[0])]
    return SessionHistory(
        session=seen.key,
        agent=seen.agent,
        page_size_tokens=page_size_tokens,
        computed_tokens=seen.computed_tokens,
        budget_tokens=None if seen.budget_pages is None else seen.budget_pages * page_size_tokens,
        regions=tuple(runs),
        held=tuple((group[0][1], group[-1][1] + 1) for group in held),
        events=events_of(entries, seen.away),
        rewinds=tuple(_rewinds(seen, entries)),
    )


def _rewinds(seen: SessionSight, entries: Sequence[LedgerEntry]) -> Iterator[Rewind]:
    """The session's rewinds, and its beginning where an earlier one had the same key."""
    evictions = [place for place, entry in enumerate(entries) if entry.reason is not EvictionReason.swapped_in]
    forgotten = seen.booked - len(evictions)  # the ledger keeps only the newest entries
    earlier = seen.booked_before - forgotten

    def events_before(count: int) -> int:
        """Events until the eviction after the first ``count`` of those that the ledger still has."""
        return evictions[count] if 0 <= count < len(evictions) else len(entries) if count > 0 else 0

    if earlier > 0:
        first = events_before(earlier)
        yield Rewind(after_events=first, from_tokens=entries[first - 1].computed_tokens, to_tokens=0)
    for booked, from_tokens, to_tokens in seen.rewinds:
        before = events_before(max(booked - forgotten, 0))
        yield Rewind(after_events=before, from_tokens=from_tokens, to_tokens=to_tokens)
