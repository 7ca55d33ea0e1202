"""What a test knows of a request that it sent."""

from __future__ import annotations

from dataclasses import dataclass, field

from memdecay_adapters.engine import RequestStream
from memdecay_adapters.engine.engine import DEFAULT_TENANT
from memdecay_agents import AgentBudget, PoolShare, RequestHints
from tests.engine.chaos_engine import GUARANTEED_PAGES, PAGE
from tests.engine.conversations import Conversation
from tests.engine.sight import Sight


@dataclass
class Life:
    """What one request computed between two preemptions."""

    number: int
    """Preemptions before it."""
    sight: Sight
    sampled: list[int] = field(default_factory=list)
    """Positions from which a token was sampled."""


@dataclass
class Submitted:
    """One request on its way."""

    stream: RequestStream
    conversation: Conversation
    hints: RequestHints | None
    prompt: list[int]
    new_tokens: int
    pinned_pages: frozenset[int]
    aborted: bool = False
    repairs: bool = False
    """Whether it is no turn of the conversation: its session's newest tokens are computed again."""
    lives: list[Life] = field(default_factory=list)
    most_over_budget_pages: int = 0
    """Held above the budget in decode."""

    @property
    def tenant(self) -> str:
        """Whose pages it may share; a request without hints names no tenant."""
        return self.conversation.tenant if self.hints is not None else DEFAULT_TENANT

    @property
    def budget(self) -> AgentBudget | None:
        """None: no limit."""
        return self.conversation.budget if self.conversation.hinted else None

    def budget_pages(self, known_tokens: int) -> int | None:
        """Whole pages of the budget once the request has so many tokens; a share may be the whole pool."""
        if self.budget is None:
            return None
        if isinstance(self.budget, PoolShare):
            return GUARANTEED_PAGES
        return self.budget.limit(known_tokens) // PAGE
