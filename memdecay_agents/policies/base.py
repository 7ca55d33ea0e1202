"""The contract of a policy: what a token is worth, and in which order pages go.

A policy is a pure function of the page view: it holds a configuration and no state, so that the same view
gives the same answer. A new one is a short file: cite, give ``token_scores``, done. Pins, sinks and the recent
window are no business of a policy: it is only ever asked about the pages that may go.
``memdecay_agents.testing.check_policy`` tests the contract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np

from memdecay_agents.arrays import BoolArray, FloatArray, IndexArray
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.observations import RefreshRule
from memdecay_agents.pages import PageView


class Ranking(NamedTuple):
    """A policy's order, and what stood beside the score in it."""

    order: IndexArray
    """int64 [E]: see `Policy.order`."""
    quota: FloatArray | None = None
    """float32 [E], evictable pages ascending: what quotas add to each page's score in the order; None: nothing."""
    inside_quota: BoolArray | None = None
    """bool [E], evictable pages ascending: inside its region's quota; None: the policy knows no quotas."""


class Policy(ABC):
    """Ranks the evictable pages of a session. Never changes the view; raises nothing in normal use.

    Args:
        config: parameters; a policy reads only those that its docstring names.
    """

    name: ClassVar[str]
    """Name in the registry and in results."""

    evicts: ClassVar[bool] = True
    """False for a policy that keeps everything: no budget applies, and nothing is ever planned."""

    uses_attention: ClassVar[bool] = True
    """False for a policy whose order depends on no attention: the engine then measures none."""

    uses_key_norms: ClassVar[bool] = False
    """True for a policy that reads key norms: the engine then measures them, each token's once."""

    uses_token_ids: ClassVar[bool] = False
    """True for a policy that reads the tokens' surprisal: the engine then tells the session their ids."""

    heeds_superseded: ClassVar[bool] = False
    """True for a policy that lets superseded pages go before others: the ledger then gives that as their reason."""

    def __init__(self, config: MemDecayConfig) -> None:
        """Keep the configuration."""
        self.config = config

    @abstractmethod
    def token_scores(self, view: PageView) -> FloatArray:
        """What each token is worth keeping, float32 [P, page], finite; higher stays longer.

        Tokens of pages that are not evictable may get any finite score.
        """

    def page_scores(self, view: PageView) -> FloatArray:
        """The mean over each page's tokens, float32 [P]."""
        return view.page_mean(self.token_scores(view))

    def score_parts(self, view: PageView) -> dict[str, FloatArray]:
        """Named parts that add up to the page score, float32 [P] each, for explanations."""
        return {"score": self.page_scores(view)}

    def order(self, view: PageView, budget_pages: int, page_scores: FloatArray) -> IndexArray:
        """All evictable pages, the first to evict first.

        Args:
            view: the held pages.
            budget_pages: how many pages of the view may stay.
            page_scores: float32 [P], the sum of ``score_parts``.

        Returns:
            int64 [E]: logical page numbers, a permutation of ``view.page_index[view.evictable]``. Here:
            ascending score, and of equal scores the lower page first.
        """
        return ascending(view.page_index[view.evictable], page_scores[view.evictable])

    def rank(self, view: PageView, budget_pages: int, page_scores: FloatArray) -> Ranking:
        """The order with what explains it; ``rank(...).order`` equals ``order(...)``. Arguments as for `order`."""
        return Ranking(self.order(view, budget_pages, page_scores))

    def for_session(self, session_key: str) -> Policy:
        """The policy that one session is planned with, asked once when the session begins. Here: this one.

        Another one brings its own configuration, with the same regions, page size and measurement.
        """
        return self

    def refresh_rule(self) -> RefreshRule:
        """When attention sets a token's clock back: here at the relative threshold of the configuration."""
        return RefreshRule("relative_mass", self.config.refresh_threshold_relative)


def ascending(pages: IndexArray, scores: FloatArray) -> IndexArray:
    """Pages (ascending numbers, int64 [E]) by rising score (float32 [E]); equal scores keep the number order."""
    return pages[np.argsort(scores, kind="stable")]
