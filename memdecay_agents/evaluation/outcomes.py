"""What became of one fact under one policy and budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from memdecay_agents.evaluation.asking import Asking
from memdecay_agents.evaluation.traces import TokenFact
from memdecay_agents.ledger_entry import LedgerEntry

Stage = Literal["replay", "verify", "recall"]


class FactOutcome(NamedTuple):
    """One fact of one trace, under one variant and budget, in one stage."""

    source: str
    stage: Stage
    length: int
    """Nominal tokens of the trace."""
    budget: float
    """Part of the trace's tokens; 1.0: the full cache."""
    policy: str
    """Label of the variant, without "+pin"."""
    pinned: bool
    region: str
    trace: str
    fact: str
    survived: bool
    correct: bool | None = None
    """Whether the right one of eight was chosen; None: not asked."""
    exact: bool | None = None
    """Whether the right value was the most likely of all words; None: not asked."""
    degenerate: bool = False
    """Pinned and protected pages fill more than half of the budget."""
    mentioned_again: bool = False
    tier: Literal["off", "host"] = "off"
    """Whether evicted pages were kept in host memory."""
    asking: Asking = "verbatim"
    """How it was asked for."""

    @property
    def key(self) -> tuple[str, str, float, str, bool]:
        """What tells the fact's outcomes apart within a stage."""
        return self.trace, self.fact, self.budget, self.policy, self.pinned


def survived(fact: TokenFact, evictions: Iterable[LedgerEntry]) -> bool:
    """Whether every page of the fact was there for the first query that needs it."""
    return not any(
        entry.token_start < fact.end and fact.start < entry.token_end and entry.computed_tokens <= fact.needed_at
        for entry in evictions
    )


def at_risk(facts: Sequence[TokenFact], budget_tokens: int | None) -> list[TokenFact]:
    """Facts that are needed only after the budget was reached: the others survive under every policy."""
    return [fact for fact in facts if budget_tokens is None or fact.needed_at > budget_tokens]
