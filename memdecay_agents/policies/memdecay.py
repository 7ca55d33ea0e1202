"""The default: decay by region, ranks of accumulated attention and of salience, soft quotas by region.

    s_i = b_r g(dt_i) + alpha (rank(acc_i) + rank(sal_i)) / 2        page score = mean

g is the power law 1 / (1 + dt / h_r) or the exponential 2 ** (-dt / h_r); ranks are taken among the tokens of
the session's evictable pages. Ours, built on MemDecay (regions, decay, refresh, pins); accumulated attention
is from H2O (arXiv 2306.14048). Ranks instead of masses answer the publication's own open point, that the
attention term needs its magnitude normalised.

Limits: like every score that does not know the question, it cannot save a fact that is never attended to
again; only a pin, a quota or a tier to come back from can. Parameters were tuned on one small model.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from memdecay_agents.arrays import FloatArray, IndexArray
from memdecay_agents.pages import PageView
from memdecay_agents.policies.base import Policy, ascending
from memdecay_agents.quotas import inside_quota, quota_pages
from memdecay_agents.scoring import Terms, page_parts, token_parts
from memdecay_kernels.terms import ScoreTerms


class MemDecayPolicy(Policy):
    """Reads ``alpha``, ``decay_form``, ``superseded_factor`` and the region profiles."""

    name: ClassVar[str] = "memdecay"

    def _terms(self, view: PageView) -> Terms:
        return ScoreTerms(
            base_priority=view.table.base_priority,
            decay_rate_per_tick=view.table.decay_rate_per_tick,
            half_life_ticks=view.table.half_life_ticks,
            decay_form=self.config.decay_form,
            superseded_factor=self.config.superseded_factor,
            attention_column="accumulated_relative",
            attention_weight=self.config.alpha / 2.0,
            attention_form="rank",
            salience_weight=self.config.alpha / 2.0,
            salience_form="rank",
        )

    def token_scores(self, view: PageView) -> FloatArray:
        """Structure + attention + salience, float32 [P, page]; ranks are 0 on pages that are not evictable."""
        structure, attention, salience = token_parts(view, self._terms(view)).values()
        return structure + attention + salience

    def score_parts(self, view: PageView) -> dict[str, FloatArray]:
        """The decaying ``structure`` and the two rank terms, ``attention`` and ``salience``."""
        return page_parts(view, self._terms(view))

    def order(self, view: PageView, budget_pages: int, page_scores: FloatArray) -> IndexArray:
        """Pages outside every quota by rising score, then the pages inside one by rising score."""
        candidates = view.evictable
        pages, scores, region = (
            view.page_index[candidates],
            page_scores[candidates],
            view.page_region[candidates],
        )
        eligible = ~view.superseded[candidates]
        weight = view.table.quota_weight
        present = np.bincount(region[eligible], minlength=weight.shape[0]) > 0
        stays = budget_pages - (view.n_pages - pages.shape[0])
        inside = inside_quota(region, scores, eligible, quota_pages(weight, present, stays))
        return np.concatenate([ascending(pages[~inside], scores[~inside]), ascending(pages[inside], scores[inside])])
