"""Attention of the newest queries: what the model looks at right now stays.

Source: SnapKV (arXiv 2404.14469), which keeps what the last queries of the prompt attend to. Unlike there: it is
asked again as decoding goes on, one score serves all layers and heads, and the page mean takes the place of
pooling over neighbours.
"""

from __future__ import annotations

from typing import ClassVar

from memdecay_agents.arrays import FloatArray
from memdecay_agents.pages import PageView
from memdecay_agents.policies.base import Policy


class LastQueryPolicy(Policy):
    """Reads nothing. Forgets whatever the present question does not touch."""

    name: ClassVar[str] = "last_query"

    def token_scores(self, view: PageView) -> FloatArray:
        """Raw mass at the newest measurement, float32 [P, page]."""
        return view.last_query_mass
