"""Tokens and evictions of each tenant's agents since start, and the tokens of the last seconds.

The counters of `events` are the operator's: by agent, all tenants together. These are apart by tenant, for snapshots
that a tenant may see. Owned by the scheduler's thread; a step costs one lookup and a few additions a request.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from memdecay_agents.ledger_entry import LedgerEntry
from memdecay_agents.live.snapshot import Evictions, Flow

MAX_TALLIES = 2000
"""Agents that are tallied one by one, all tenants together; further ones only in the engine's total."""
WINDOW_SECONDS = 10


@dataclass
class LiveTally:
    """Counts of one agent, or of many together."""

    computed_tokens: int = 0
    generated_tokens: int = 0
    by_region: Counter[str] = field(default_factory=Counter)
    by_reason: Counter[str] = field(default_factory=Counter)
    _seconds: list[int] = field(default_factory=lambda: [-1] * WINDOW_SECONDS)
    _lately: list[list[int]] = field(default_factory=lambda: [[0, 0] for _ in range(WINDOW_SECONDS)])

    def step(self, second: int, computed: int, generated: int) -> None:
        """Count a step's tokens, computed in this whole second."""
        self.computed_tokens += computed
        self.generated_tokens += generated
        slot = second % WINDOW_SECONDS
        if self._seconds[slot] != second:
            self._seconds[slot], self._lately[slot] = second, [0, 0]
        self._lately[slot][0] += computed
        self._lately[slot][1] += generated

    def lately(self, second: int) -> tuple[int, int]:
        """Tokens computed and generated in the window that ends with this second."""
        recent = [
            counts
            for at, counts in zip(self._seconds, self._lately, strict=True)
            if second - WINDOW_SECONDS < at <= second
        ]
        return sum(counts[0] for counts in recent), sum(counts[1] for counts in recent)

    def evictions(self) -> Evictions:
        """The evictions as a snapshot shows them."""
        return Evictions(pages=self.by_reason.total(), by_region=dict(self.by_region), by_reason=dict(self.by_reason))


class LiveTallies:
    """All tallies of one engine.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self.total = LiveTally()
        """The whole engine's."""
        self._tallies: dict[tuple[str, str], LiveTally] = {}

    def step(self, tenant: str, agent: str, computed: int, generated: int) -> None:
        """Count the tokens of one request's step."""
        second = int(self._clock())
        self.total.step(second, computed, generated)
        if (tally := self._of(tenant, agent)) is not None:
            tally.step(second, computed, generated)

    def evicted(self, tenant: str, agent: str, entries: Sequence[LedgerEntry]) -> None:
        """Count pages that left."""
        if not entries:
            return
        for tally in (self.total, self._of(tenant, agent)):
            if tally is not None:
                tally.by_region.update(entry.region for entry in entries)
                tally.by_reason.update(entry.reason.value for entry in entries)

    def of_tenant(self, tenant: str | None) -> dict[str, LiveTally]:
        """Tallies by agent: one tenant's, or those of all, agents of one name together (None)."""
        if tenant is not None:
            return {agent: tally for (whose, agent), tally in self._tallies.items() if whose == tenant}
        agents: dict[str, list[LiveTally]] = {}
        for (_, agent), tally in self._tallies.items():
            agents.setdefault(agent, []).append(tally)
        return {agent: tallies[0] if len(tallies) == 1 else self._sum(tallies) for agent, tallies in agents.items()}

    def total_of(self, tenant: str | None) -> LiveTally:
        """One tenant's agents together, or the whole engine (None)."""
        return self.total if tenant is None else self._sum(list(self.of_tenant(tenant).values()))

    def flow(self, tally: LiveTally) -> Flow:
        """A tally's tokens as a snapshot shows them."""
        now = self._clock()
        first = max(int(now) - WINDOW_SECONDS + 1, self._started)
        seconds = max(now - first, 1.0)
        computed, generated = tally.lately(int(now))
        return Flow(
            computed_tokens=tally.computed_tokens,
            generated_tokens=tally.generated_tokens,
            computed_tokens_per_second=round(computed / seconds, 3),
            generated_tokens_per_second=round(generated / seconds, 3),
        )

    @property
    def uptime_seconds(self) -> float:
        """Since the engine started."""
        return self._clock() - self._started

    def _of(self, tenant: str, agent: str) -> LiveTally | None:
        tally = self._tallies.get((tenant, agent))
        if tally is None and len(self._tallies) < MAX_TALLIES:
            tally = self._tallies[tenant, agent] = LiveTally()
        return tally

    def _sum(self, tallies: list[LiveTally]) -> LiveTally:
        total, second = LiveTally(), int(self._clock())
        for tally in tallies:
            computed, generated = tally.lately(second)
            total.step(second, computed, generated)
            total.computed_tokens += tally.computed_tokens - computed
            total.generated_tokens += tally.generated_tokens - generated
            total.by_region.update(tally.by_region)
            total.by_reason.update(tally.by_reason)
        return total
