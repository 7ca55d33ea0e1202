"""MemDecay as published: s_i = b_r exp(-lambda_r dt_i) + alpha a_i, page score = mean.

Source: "MemDecay", region-aware KV cache eviction for LLM agents (published summary). The formula, the
EWMA of the raw mass, the refresh at tau, pins and page means are published. b_r, alpha, tau and the EWMA factor
are not: those here are ours (``RegionProfile.base_priority``, ``paper_alpha``, ``paper_refresh_threshold_mass``,
``ewma_factor``). dt is in decode steps.

Limits, found by its authors and again by us: the attention term is far too small beside the decay term, so
that this is close to decay alone; unpinned facts are lost earlier than under accumulated attention.
"""

from __future__ import annotations

from typing import ClassVar

from memdecay_agents.arrays import FloatArray
from memdecay_agents.observations import RefreshRule
from memdecay_agents.pages import PageView
from memdecay_agents.policies.base import Policy
from memdecay_agents.scoring import Terms, page_parts, token_parts
from memdecay_kernels.terms import ScoreTerms


class PaperPolicy(Policy):
    """The published formula, unchanged; demotion of superseded spans acts only where a request asks for it."""

    name: ClassVar[str] = "paper"
    heeds_superseded = True

    def _terms(self, view: PageView) -> Terms:
        return ScoreTerms(
            base_priority=view.table.base_priority,
            decay_rate_per_tick=view.table.decay_rate_per_tick,
            half_life_ticks=view.table.half_life_ticks,
            superseded_factor=self.config.superseded_factor,
            attention_column="ewma_mass",
            attention_weight=self.config.paper_alpha,
        )

    def token_scores(self, view: PageView) -> FloatArray:
        """b exp(-lambda dt) + alpha a, float32 [P, page]."""
        parts = token_parts(view, self._terms(view))
        return parts["structure"] + parts["attention"]

    def score_parts(self, view: PageView) -> dict[str, FloatArray]:
        """The decaying ``structure`` and the ``attention`` term."""
        parts = page_parts(view, self._terms(view))
        return {"structure": parts["structure"], "attention": parts["attention"]}

    def refresh_rule(self) -> RefreshRule:
        """tau, on the raw mass."""
        return RefreshRule("raw_mass", self.config.paper_refresh_threshold_mass)
