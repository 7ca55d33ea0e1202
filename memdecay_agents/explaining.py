"""Explanations made from a live session, or from a ledger's entries alone. Nothing here changes a session."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from memdecay_agents.arrays import IndexArray
from memdecay_agents.booked_pages import EVIDENCE, page_evidence
from memdecay_agents.errors import ExplainError
from memdecay_agents.explanation import CameBack, Freed, KeptBy, PageExplanation, SessionExplanation
from memdecay_agents.ledger_entry import EvictionReason, LedgerEntry
from memdecay_agents.pages import PageView, build_page_view, region_counts
from memdecay_agents.recent_share import newest_last
from memdecay_agents.session_state import SessionState


def explain_session(
    state: SessionState,
    held_pages: Sequence[int],
    *,
    message: int | None = None,
    page: int | None = None,
    token: int | None = None,
    host_pages: Collection[int] = (),
) -> SessionExplanation:
    """Explain the pages of a session that lives.

    Args:
        state: the session.
        held_pages: logical pages that the engine holds of it now.
        message: only the pages of this message; likewise ``page`` and ``token``; none of them: all pages.
        host_pages: freed pages that have a copy in host memory.

    Raises:
        ExplainError: the session has no such message, page or token.
    """
    tokens, size = state.tokens, state.config.page_size_tokens
    budget = state.budget_pages
    empty = SessionExplanation(
        session=state.key, agent=state.agent, turn=state.turn, policy=state.policy.name, page_size_tokens=size,
        clock_unit=state.config.clock_unit, clock_ticks=tokens.clock_ticks, computed_tokens=tokens.computed_tokens,
        budget_tokens=None if budget is None else budget * size, complete=True,
        messages=message_spans(state), pages=(),
    )  # fmt: skip
    first, end = 0, -(-tokens.computed_tokens // size)
    if (message, page, token) != (None, None, None):
        _, start, stop = empty.range_of(message=message, page=page, token=token)
        first, end = start // size, min(end, -(-stop // size))
    wanted = np.arange(first, max(first, end), dtype=np.int64)
    return empty.model_copy(update={"pages": tuple(_pages_of(state, wanted, sorted(held_pages), host_pages))})


def message_spans(state: SessionState) -> tuple[tuple[int, int], ...]:
    """Tokens of each message of the newest prompt and, last, of its answer so far; empty: the request told nothing."""
    if not state.messages:
        return ()
    answer = max(end for _, end in state.messages)
    return (*state.messages, (answer, max(answer, state.tokens.computed_tokens)))


def message_retention(state: SessionState, held_pages: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Of each message of `message_spans`: (tokens held, tokens freed); tokens not computed are neither."""
    spans = message_spans(state)
    if not spans:
        return ()
    size, computed = state.config.page_size_tokens, state.tokens.computed_tokens
    holds = np.zeros(-(-computed // size) + 1, dtype=np.bool_)
    holds[[page for page in held_pages if page < holds.size]] = True
    before = np.concatenate(([0], np.cumsum(np.repeat(holds, size)[:computed])))
    ends = np.minimum(np.asarray(spans, dtype=np.int64), computed)
    held = before[ends[:, 1]] - before[ends[:, 0]]
    freed = ends[:, 1] - ends[:, 0] - held
    return tuple(zip(held.tolist(), freed.tolist(), strict=True))


def explain_entries(entries: Sequence[LedgerEntry], session: str | None = None) -> SessionExplanation:
    """Explain the freed pages of one session from a ledger's entries; of a page that went twice the newest.

    A page whose newest entry says that it came back is held.

    Args:
        entries: of any sessions, oldest first.
        session: its key; None: the only one.

    Raises:
        ExplainError: no entry of that session, or entries of several where none is named.
    """
    keys = list(dict.fromkeys(entry.session for entry in entries))
    if session is None and len(keys) > 1:
        raise ExplainError(
            where="ledger",
            rule=f"it has {len(keys)} sessions, and none is named",
            remedy=f"Name one of them, such as {', '.join(map(repr, keys[:5]))}.",
        )
    mine = {entry.page: entry for entry in entries if session in (None, entry.session)}
    if not mine:
        raise ExplainError(
            where="ledger" if session is None else f"session {session!r}",
            rule="no page of it was freed, by this ledger",
            remedy=f"Known sessions: {', '.join(map(repr, keys[:5])) or 'none'}.",
        )
    newest = list(mine.values())[-1]
    return SessionExplanation(
        session=newest.session, agent=newest.agent, turn=newest.turn, policy="",
        page_size_tokens=newest.token_end - newest.token_start, clock_unit="", clock_ticks=newest.clock_ticks,
        computed_tokens=newest.computed_tokens,
        budget_tokens=None, complete=False, pages=tuple(_by_newest(mine[number]) for number in sorted(mine)),
    )  # fmt: skip


def _by_newest(entry: LedgerEntry) -> PageExplanation:
    if (back := _came_back(entry)) is None:
        return _freed_page(entry)
    return PageExplanation(
        page=entry.page, token_start=entry.token_start, token_end=entry.token_end, state="held", region=entry.region,
        regions=entry.regions, pinned=entry.pinned, superseded=entry.superseded, came_back=back,
    )  # fmt: skip


def _pages_of(
    state: SessionState, wanted: IndexArray, held_pages: Sequence[int], host_pages: Collection[int]
) -> list[PageExplanation]:
    held = _Held(state, held_pages)
    moves = {entry.page: entry for entry in state.ledger.moves(state.key)}
    entries = {entry.page: entry for entry in state.ledger.entries(state.key)}
    around = build_page_view(state.tokens, wanted, state.tokens.computed_tokens, state.config)
    regions = _regions(around)
    found = []
    for row, page in enumerate(wanted.tolist()):
        if page in held.rows:
            back = _came_back(moves[page]) if page in moves else None
            found.append(held.explain(page, regions[row]).model_copy(update={"came_back": back}))
        elif page in entries:
            found.append(_freed_page(entries[page]).model_copy(update={"on_host": page in host_pages}))
        else:
            facts = _plain_facts(around, row, regions[row])
            found.append(PageExplanation(state="lost", **facts))
    return found


class _Held:
    """The held pages, scored and ordered as if one of them had to go now."""

    def __init__(self, state: SessionState, held_pages: Sequence[int]) -> None:
        self._view = state.view(state.tokens.computed_tokens, held_pages)
        self.rows = {page: row for row, page in enumerate(self._view.page_index.tolist())}
        self._scored = _score(state, self._view)

    def explain(self, page: int, regions: dict[str, int]) -> PageExplanation:
        view, row, scored = self._view, self.rows[page], self._scored
        facts = _plain_facts(view, row, regions)
        facts["evidence"] = dict(zip(EVIDENCE, page_evidence(view, np.asarray([row]))[0], strict=True))
        if scored is not None:
            facts |= {"score": scored.scores[row], "parts": {name: part[row] for name, part in scored.parts.items()}}
            if page in scored.place:
                facts |= {"goes_after": scored.place[page], "quota": scored.quota.get(page, 0.0),
                          "inside_quota": scored.inside.get(page)}  # fmt: skip
        return PageExplanation(state="held", **facts)


@dataclass(frozen=True)
class _Scored:
    scores: list[float]
    parts: dict[str, list[float]]
    place: dict[int, int]
    quota: dict[int, float]
    inside: dict[int, bool]


def _score(state: SessionState, view: PageView) -> _Scored | None:
    """Scores and order by the session's policy; None where it keeps everything, or fails."""
    if not state.policy.evicts or not view.n_pages:
        return None
    try:
        parts = state.policy.score_parts(view)
        scores = np.asarray(np.sum(list(parts.values()), axis=0), dtype=np.float32)
        budget = view.n_pages - 1 if state.budget_pages is None else min(state.budget_pages, view.n_pages - 1)
        ranking = state.policy.rank(view, budget, scores)
        order = np.asarray(ranking.order, dtype=np.int64)
        staying = order.shape[0] - (view.n_pages - budget)
        order, _ = newest_last(order, view, state.policy, staying, state.recent_share)
    except Exception:  # a user's policy; its faults are counted where it plans
        return None
    candidates = view.page_index[view.evictable].tolist()
    quota, inside = ranking.quota, ranking.inside_quota
    return _Scored(
        scores.tolist(),
        {name: np.asarray(part, dtype=np.float32).tolist() for name, part in parts.items()},
        {page: place for place, page in enumerate(order.tolist())},
        {} if quota is None else dict(zip(candidates, quota.tolist(), strict=True)),
        {} if inside is None else dict(zip(candidates, inside.tolist(), strict=True)),
    )


def _plain_facts(view: PageView, row: int, regions: dict[str, int]) -> dict[str, Any]:
    page, size = int(view.page_index[row]), view.page_size_tokens
    return {
        "page": page,
        "token_start": page * size,
        "token_end": (page + 1) * size,
        "region": view.table.names[int(view.page_region[row])],
        "regions": regions,
        "pinned": bool(view.pinned[row]),
        "protected": bool(view.protected[row]),
        "superseded": bool(view.superseded[row]),
    }


def _regions(view: PageView) -> list[dict[str, int]]:
    names, size = view.table.names, view.page_size_tokens
    counted = np.clip(view.n_tokens - view.page_index * size, 0, size)
    counts = region_counts(view.region, counted, len(names))
    return [{names[at]: int(row[at]) for at in np.flatnonzero(row).tolist()} for row in counts]


def _came_back(entry: LedgerEntry) -> CameBack | None:
    """What a page's newest move says, if it is a return."""
    if entry.reason is not EvictionReason.swapped_in:
        return None
    return CameBack(
        turn=entry.turn, clock_ticks=entry.clock_ticks, computed_tokens=entry.computed_tokens,
        evidence=entry.score or None, for_repair="repair" in entry.parts,
    )  # fmt: skip


def _freed_page(entry: LedgerEntry) -> PageExplanation:
    return PageExplanation(
        page=entry.page, token_start=entry.token_start, token_end=entry.token_end, state="freed",
        region=entry.region, regions=entry.regions, pinned=entry.pinned, superseded=entry.superseded,
        score=entry.score, parts=entry.parts, quota=entry.quota, inside_quota=entry.inside_quota,
        evidence=entry.evidence,
        freed=Freed(
            reason=entry.reason, turn=entry.turn, step=entry.step, clock_ticks=entry.clock_ticks,
            computed_tokens=entry.computed_tokens, request_id=entry.request_id, order_position=entry.order_position,
        ),
        kept_by=tuple(_kept_by(entry)),
    )  # fmt: skip


def _kept_by(entry: LedgerEntry) -> list[KeptBy]:
    found = []
    if entry.keeping_pages is not None:
        pressed = entry.reason is EvictionReason.pool_pressure
        tokens = entry.keeping_pages * (entry.token_end - entry.token_start)
        found.append(
            KeptBy(
                kind="guarantee" if pressed else "budget",
                amount=tokens,
                text=f"a {'guarantee' if pressed else 'budget'} of {tokens} tokens, in the order of that plan",
            )
        )
    found.append(KeptBy(kind="pin", text=f"a pin on it, or on the region '{entry.region}'"))
    if entry.superseded:
        found.append(KeptBy(kind="not_superseded", text="nothing newer that replaces it"))
    elif entry.lowest_kept is not None:
        gap = max(0.0, entry.lowest_kept - entry.score - entry.quota)
        text = f"a score above that of the lowest page that stayed: {gap:.3g} more"
        found.append(KeptBy(kind="score", amount=gap, text=text))
    return found
