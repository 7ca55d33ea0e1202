"""What the ledger writes of pages that a plan frees: what they were, and why they stood where they did."""

from __future__ import annotations

from typing import Any

import numpy as np

from memdecay_agents.arrays import IndexArray
from memdecay_agents.pages import PageView, region_counts
from memdecay_agents.selection import EvictionPlan

EVIDENCE = ("age_ticks", "ewma_mass", "salience", "key_norm")
"""What is told of a page's tokens, as means, beside the parts of its score."""


class BookedPages:
    """The pages of one plan, in its order.

    Args:
        view: the held pages that the plan was made for; the session has not changed since.
        plan: frees at least one page.
    """

    def __init__(self, view: PageView, plan: EvictionPlan) -> None:
        self._view = view
        self._plan = plan
        self._rows: list[int] = np.searchsorted(view.page_index, plan.pages).tolist()
        names, rows = view.table.names, np.asarray(self._rows, dtype=np.int64)
        counts = region_counts(view.region[rows], np.full(len(rows), view.page_size_tokens), len(names))
        self._regions = [{names[at]: int(row[at]) for at in np.flatnonzero(row).tolist()} for row in counts]
        self._evidence = page_evidence(view, rows)
        is_head = plan.order[: len(plan.pages)] == plan.pages  # pool pressure may leave out pages that are shared
        self._places = list(range(len(rows))) if is_head else [plan.order.index(page) for page in plan.pages]
        self._lowest_kept = self._next_kept(max(self._places) + 1)

    def _next_kept(self, place: int) -> float | None:
        """Score and quota of the page at a place of the order; None: what comes there is the newest, or nothing."""
        if place >= len(self._plan.order) - self._plan.newest_last:
            return None
        return self._plan.scores[self._plan.order[place]] + self._quota(place)

    def _quota(self, place: int) -> float:
        return self._plan.quota[place] if self._plan.quota else 0.0

    def facts(self, position: int) -> dict[str, Any]:
        """Fields of the ledger entry of the page at a position of ``plan.pages``."""
        view, plan = self._view, self._plan
        page, row, place = plan.pages[position], self._rows[position], self._places[position]
        return {
            "page": page,
            "token_start": page * view.page_size_tokens,
            "token_end": (page + 1) * view.page_size_tokens,
            "regions": self._regions[position],
            "region": view.table.names[int(view.page_region[row])],
            "pinned": bool(view.pinned[row]),
            "superseded": bool(view.superseded[row]),
            "clock_ticks": view.clock_ticks,
            "computed_tokens": view.processed_tokens,
            "score": plan.scores[page],
            "parts": plan.parts[page],
            "order_position": position,
            "budget_pages": plan.budget_pages,
            "keeping_pages": None if plan.newest_last else plan.held_before + plan.new_pages - place,
            "inside_quota": plan.inside_quota[place] if plan.inside_quota else None,
            "quota": self._quota(place),
            "lowest_kept": self._lowest_kept,
            "evidence": dict(zip(EVIDENCE, self._evidence[position], strict=True)),
        }


def page_evidence(view: PageView, rows: IndexArray) -> list[list[float]]:
    """Means over the tokens of some pages, in the order of `EVIDENCE`.

    Args:
        view: the held pages.
        rows: int64 [K]: their rows in the view.

    Returns:
        K lists; a page that is not full counts its missing tokens as 0.
    """
    pages, page = view.page_index[rows], view.page_size_tokens
    columns = view.columns

    def of(column: np.ndarray) -> np.ndarray:
        return np.asarray(column.reshape(-1, page)[pages])

    ages = np.maximum(view.clock_ticks - of(columns.refreshed_at_ticks), 0)
    salience = of(columns.salience_sum) / np.maximum(of(columns.salience_weight), np.float32(1.0))
    tokens = (ages, of(columns.ewma_mass), salience, of(columns.key_norm))
    means: list[list[float]] = np.stack([values.mean(axis=1) for values in tokens], axis=1).tolist()
    return means
