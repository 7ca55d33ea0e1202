"""The default: priority of what is young in its region, what a page tells, ranks of key norms and salience, quotas.

    s_i = b_r g(dt_i) + alpha (1 - u) ((1 - k) rank(salience_i) - k rank(norm_i))
    page score = mean of s + alpha u information + neighbours + mentions
    order by  score  + bonus where the page is inside its region's quota, - its b_r g part where it is not;
              superseded pages go before all others

So a quota bounds what a region can claim by its priority: a fresh tool result as long as the budget takes its share.
A quota of one page gives no bonus: half of what lies on two pages is of no use.

u is ``information_share`` (0 where no token ids are known), k is ``key_norm_share``; information, neighbours, mentions:
see the modules of these names in ``memdecay_agents``. g is the exponential 2 ** (-dt / h_r) or
the power law 1 / (1 + dt / h_r); ranks are taken among the tokens of the session's evictable pages. Ours, built on
MemDecay (regions, decay, refresh, pins); that small keys are worth keeping is from arXiv 2406.11430. Ranks instead of
magnitudes answer the publication's own open point, that the attention term needs its magnitude normalised. What was
tried and why this stayed: EVALUATION.md.

Limits: like every score that does not know the question, it guesses. Parameters were chosen with one small model.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from memdecay_agents.arrays import FloatArray, IndexArray
from memdecay_agents.information import page_information
from memdecay_agents.mentions import close_to_mentioned
from memdecay_agents.neighbours import neighbour_gain
from memdecay_agents.pages import PageView
from memdecay_agents.policies.base import Policy, Ranking, ascending
from memdecay_agents.quotas import PAGES_FOR_BONUS, inside_quota, quota_pages
from memdecay_agents.scoring import Terms, page_parts, token_parts, token_structure
from memdecay_kernels.terms import ScoreTerms


class MemDecayPolicy(Policy):
    """Reads ``alpha``, the two shares, ``quota_bonus``, ``neighbours_up_to_pages``, ``mention_bonus``, ``decay_form``,
    ``superseded_factor`` and the profiles."""

    name: ClassVar[str] = "memdecay"
    uses_key_norms = True
    uses_token_ids = True
    heeds_superseded = True

    def _information_share(self, view: PageView) -> float:
        """u: 0 where no token ids are known, so that the other terms are not scaled down for nothing."""
        return self.config.information_share if view.counts.n_known else 0.0

    def _information(self, view: PageView) -> FloatArray:
        """alpha u information, float32 [P]."""
        weight = self.config.alpha * self._information_share(view)
        if weight == 0.0:
            return np.zeros(view.n_pages, dtype=np.float32)
        return np.float32(weight) * page_information(view)

    def _by_page(self, view: PageView) -> dict[str, FloatArray]:
        """The parts that a page has as a whole, float32 [P] each."""
        return {
            "information": self._information(view),
            "neighbours": neighbour_gain(view, self.config.neighbours_up_to_pages),
            "mentions": np.float32(self.config.mention_bonus) * close_to_mentioned(view).astype(np.float32),
        }

    def _terms(self, view: PageView) -> Terms:
        rest = self.config.alpha * (1.0 - self._information_share(view))
        return ScoreTerms(
            base_priority=view.table.base_priority,
            decay_rate_per_tick=view.table.decay_rate_per_tick,
            half_life_ticks=view.table.half_life_ticks,
            decay_form=self.config.decay_form,
            superseded_factor=self.config.superseded_factor,
            attention_column="key_norm",
            attention_weight=-rest * self.config.key_norm_share,
            attention_form="rank",
            salience_weight=rest * (1.0 - self.config.key_norm_share),
            salience_form="rank",
        )

    def token_scores(self, view: PageView) -> FloatArray:
        """Structure + key norm + salience + the page's information, neighbours and mentions, float32 [P, page].

        Ranks are 0 on pages that are not evictable.
        """
        structure, key_norm, salience = token_parts(view, self._terms(view)).values()
        page = np.sum(list(self._by_page(view).values()), axis=0)
        return np.asarray(structure + key_norm + salience + page[:, None], dtype=np.float32)

    def score_parts(self, view: PageView) -> dict[str, FloatArray]:
        """The decaying ``structure``, the rank terms ``key_norm`` (at most 0) and ``salience``, and of the page as a
        whole ``information``, ``neighbours`` and ``mentions``."""
        structure, key_norm, salience = page_parts(view, self._terms(view)).values()
        return {"structure": structure, "key_norm": key_norm, "salience": salience, **self._by_page(view)}

    def order(self, view: PageView, budget_pages: int, page_scores: FloatArray) -> IndexArray:
        """Superseded pages, then the others by rising score after what quotas give and take; see ``quota_bonus``.

        Superseded pages go first whatever the model says of them: what they hold was often attended to a lot before it
        was replaced. ``superseded_factor=1`` leaves them among those outside a quota.
        """
        return self._ranking(view, budget_pages, page_scores).order

    def rank(self, view: PageView, budget_pages: int, page_scores: FloatArray) -> Ranking:
        """The order, what quotas add to each score, and which pages are inside one."""
        if type(self).order is not MemDecayPolicy.order:  # a policy built on this one has an order of its own
            return super().rank(view, budget_pages, page_scores)
        return self._ranking(view, budget_pages, page_scores)

    def _ranking(self, view: PageView, budget_pages: int, page_scores: FloatArray) -> Ranking:
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
        quota = quota_pages(weight, present, stays)
        inside = inside_quota(region, scores, eligible, quota)
        first = ~eligible if self.config.superseded_factor < 1.0 else np.zeros_like(eligible)
        groups, moved = [first, ~inside & ~first, inside], None
        if self.config.quota_bonus is not None:
            structure = view.page_mean(token_structure(view, self._terms(view)))[candidates]
            bonus = np.where(quota >= PAGES_FOR_BONUS, np.float32(self.config.quota_bonus), np.float32(0.0))[region]
            moved = np.where(inside, bonus, -structure)
            scores, groups = np.asarray(scores + moved, dtype=np.float32), [first, ~first]
        order = np.concatenate([ascending(pages[group], scores[group]) for group in groups])
        return Ranking(order, moved, inside)
