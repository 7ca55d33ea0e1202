"""Many policies in one engine, at once: each session is planned with its own, clock and profiles included."""

from __future__ import annotations

from typing import ClassVar

from memdecay_agents.config import MemDecayConfig
from memdecay_agents.policies.base import Policy
from memdecay_agents.policies.recency import RecencyPolicy


class SessionPolicies(RecencyPolicy):
    """Recency, except for sessions that were given another policy.

    Args:
        config: the engine's.
    """

    name: ClassVar[str] = "evaluation"
    uses_attention = True
    uses_key_norms = True

    def __init__(self, config: MemDecayConfig) -> None:
        super().__init__(config)
        self.by_session: dict[str, Policy] = {}
        """Policy by session key."""

    def for_session(self, session_key: str) -> Policy:
        """What was set for the session."""
        return self.by_session.get(session_key, self)
