"""One policy object that is another one for each session: many policies in one engine, at once."""

from __future__ import annotations

from typing import ClassVar

from memdecay_agents.arrays import FloatArray, IndexArray
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.observations import RefreshRule
from memdecay_agents.pages import PageView
from memdecay_agents.policies.base import Policy


class SessionPolicies(Policy):
    """Asks the policy that was set for the view's session.

    Args:
        config: the engine's.
        refresh: rule of all sessions; baselines read no clocks, so that one rule serves them beside another policy.
    """

    name: ClassVar[str] = "evaluation"
    uses_key_norms = True

    def __init__(self, config: MemDecayConfig, refresh: RefreshRule) -> None:
        super().__init__(config)
        self.by_session: dict[str, Policy] = {}
        """Policy by session key."""
        self._refresh = refresh

    def token_scores(self, view: PageView) -> FloatArray:
        """What the session's policy gives."""
        return self.by_session[view.session_key].token_scores(view)

    def page_scores(self, view: PageView) -> FloatArray:
        """What the session's policy gives."""
        return self.by_session[view.session_key].page_scores(view)

    def score_parts(self, view: PageView) -> dict[str, FloatArray]:
        """What the session's policy gives."""
        return self.by_session[view.session_key].score_parts(view)

    def order(self, view: PageView, budget_pages: int, page_scores: FloatArray) -> IndexArray:
        """What the session's policy gives."""
        return self.by_session[view.session_key].order(view, budget_pages, page_scores)

    def refresh_rule(self) -> RefreshRule:
        """The one rule."""
        return self._refresh
