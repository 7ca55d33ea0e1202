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

import numpy as np

from memdecay_agents.arrays import FloatArray
from memdecay_agents.observations import RefreshRule
from memdecay_agents.pages import PageView
from memdecay_agents.policies.base import Policy
from memdecay_agents.spans import SpanFlag


def demotion(view: PageView, superseded_factor: float) -> FloatArray:
    """``superseded_factor`` for the tokens that something newer supersedes, 1 for the others; float32 [P, page]."""
    superseded = (view.flags & np.int8(SpanFlag.SUPERSEDED)) != 0
    return np.where(superseded, np.float32(superseded_factor), np.float32(1.0))


def base_priority(view: PageView, superseded_factor: float) -> FloatArray:
    """b_r of each token, float32 [P, page], demoted where something newer supersedes it."""
    priority: FloatArray = view.table.base_priority[view.region] * demotion(view, superseded_factor)
    return priority


class PaperPolicy(Policy):
    """The published formula, unchanged; demotion of superseded spans acts only where a request asks for it."""

    name: ClassVar[str] = "paper"

    def _structure(self, view: PageView) -> FloatArray:
        rate = view.table.decay_rate_per_tick[view.region]
        decay: FloatArray = np.exp(-rate * view.age_ticks.astype(np.float32))
        return base_priority(view, self.config.superseded_factor) * decay

    def _attention(self, view: PageView) -> FloatArray:
        return np.float32(self.config.paper_alpha) * view.ewma_mass

    def token_scores(self, view: PageView) -> FloatArray:
        """b exp(-lambda dt) + alpha a, float32 [P, page]."""
        return self._structure(view) + self._attention(view)

    def score_parts(self, view: PageView) -> dict[str, FloatArray]:
        """The decaying ``structure`` and the ``attention`` term."""
        return {
            "structure": view.page_mean(self._structure(view)),
            "attention": view.page_mean(self._attention(view)),
        }

    def refresh_rule(self) -> RefreshRule:
        """tau, on the raw mass."""
        return RefreshRule("raw_mass", self.config.paper_refresh_threshold_mass)
