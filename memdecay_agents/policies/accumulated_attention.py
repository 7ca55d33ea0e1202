"""Accumulated attention: what was looked at most, over all queries so far, stays.

Source: H2O, "Heavy-Hitter Oracle" (arXiv 2306.14048). Unlike there: one score a token for all layers and heads,
whole pages, and the mass is taken relative to the uniform level, so that queries that saw few tokens and
queries that saw many count alike. Its window of recent tokens is the protected one.
"""

from __future__ import annotations

from typing import ClassVar

from memdecay_agents.arrays import FloatArray
from memdecay_agents.pages import PageView
from memdecay_agents.policies.base import Policy


class AccumulatedAttentionPolicy(Policy):
    """Reads nothing. Favours old tokens: they had more queries to collect mass from."""

    name: ClassVar[str] = "accumulated_attention"

    def token_scores(self, view: PageView) -> FloatArray:
        """Sum of relative mass over all queries, float32 [P, page]."""
        return view.accumulated_relative
