"""What each agent achieved since start: budget, pages held at most, pages freed; and whether its budget ever bound."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from memdecay_adapters.engine.results import RetentionSummary

MAX_AGENTS = 1000
"""Agents that are tallied one by one; further ones are not."""


@dataclass(frozen=True)
class AgentTally:
    """One agent's requests so far. Pages unless another unit is named."""

    agent: str
    turns: int = 0
    budget_pages: int | None = None
    """Of the newest turn; None: no budget."""
    peak_pages: int = 0
    """Most pages held while decoding in any turn: the budget that was achieved."""
    peak_pages_prefill: int = 0
    """Most pages held while prefilling: at most the budget and one chunk."""
    longest_pages: int = 0
    """Pages that its longest turn would have taken without eviction."""
    evicted_pages: int = 0
    shortfall_pages: int = 0
    """The most by which a budget was missed, because of pinned and protected pages."""
    budget_bound: bool = False
    """Whether the budget ever asked for an eviction."""

    @property
    def never_bound(self) -> bool:
        """Whether there is a budget that changed nothing."""
        return self.budget_pages is not None and not self.budget_bound


class AgentTallies:
    """Tallies of all agents of an engine."""

    def __init__(self) -> None:
        self._tallies: dict[str, AgentTally] = {}

    def __iter__(self) -> Iterator[AgentTally]:
        return iter(list(self._tallies.values()))

    def add(self, summary: RetentionSummary) -> None:
        """Take in an ended turn."""
        before = self._tallies.get(summary.agent)
        if before is None:
            if len(self._tallies) >= MAX_AGENTS:
                return
            before = AgentTally(summary.agent)
        self._tallies[summary.agent] = dataclasses.replace(
            before,
            turns=before.turns + 1,
            budget_pages=summary.budget_pages,
            peak_pages=max(before.peak_pages, summary.peak_pages_decode),
            peak_pages_prefill=max(before.peak_pages_prefill, summary.peak_pages_prefill),
            longest_pages=max(before.longest_pages, summary.pages_total),
            evicted_pages=before.evicted_pages + summary.evictions,
            shortfall_pages=max(before.shortfall_pages, summary.shortfall_pages),
            budget_bound=before.budget_bound or summary.budget_bound,
        )
