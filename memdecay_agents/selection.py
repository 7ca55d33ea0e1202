"""From scores to an eviction plan: which pages go, in which order, and what to say when too few may."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from memdecay_agents.arrays import FloatArray
from memdecay_agents.budgets import check_budget, minimum_budget_pages
from memdecay_agents.pages import PageView
from memdecay_agents.policies.base import Policy, Ranking, ascending
from memdecay_agents.recent_share import newest_last

__all__ = ["EvictionPlan", "check_budget", "minimum_budget_pages", "plan_eviction"]


@dataclass(frozen=True)
class EvictionPlan:
    """What to free. Evicted pages rank no higher than any kept evictable page in ``order``."""

    pages: tuple[int, ...] = ()
    """Logical pages to free, the first to go first: the head of ``order``."""
    order: tuple[int, ...] = ()
    """The final order of all evictable pages: the policy's, quotas included, the newest ones last where they have a
    share; empty when nothing had to go."""
    scores: dict[int, float] = field(default_factory=dict)
    """Page score of each page in ``order``."""
    parts: dict[int, dict[str, float]] = field(default_factory=dict)
    """Named parts that add up to the score, for each page in ``pages``."""
    quota: tuple[float, ...] = ()
    """What quotas added to the score of each page in ``order``; empty where the policy adds nothing."""
    inside_quota: tuple[bool, ...] = ()
    """Whether each page in ``order`` is inside its region's quota; empty where the policy knows no quotas."""
    newest_last: int = 0
    """How many at the end of ``order`` stand there for being the newest, whatever their score."""
    held_before: int = 0
    """Pages held before."""
    held_after: int = 0
    """Pages held after: before, less the freed ones. New pages of this step come on top."""
    new_pages: int = 0
    """Pages that this step is about to allocate."""
    budget_pages: int | None = None
    """The budget that was planned for; None: no limit, or pages were asked for by number."""
    shortfall_pages: int = 0
    """Pages that had to go and may not: pinned or protected."""
    refusal: str | None = None
    """Why the shortfall exists, with its numbers; None without one."""
    fault: str | None = None
    """How the policy broke its contract, if it did. The plan then falls back to plain score order, or to the
    oldest pages where the policy raised an exception."""

    def __bool__(self) -> bool:
        """Whether anything is to be freed."""
        return bool(self.pages)


def plan_eviction(
    view: PageView,
    policy: Policy,
    *,
    pages_to_free: int | None = None,
    budget_pages: int | None = None,
    new_pages: int = 0,
    allow_partial: bool = True,
    recent_share: float = 0.0,
    leaving_pages: int | None = None,
) -> EvictionPlan:
    """Plan which pages go. Changes nothing and raises nothing: a shortfall is reported in the plan.

    Args:
        view: the held pages.
        policy: ranks them.
        pages_to_free: free so many (pool pressure); else as many as ``budget_pages`` asks for.
        budget_pages: held and new pages together may be so many; None: no limit.
        new_pages: pages about to be allocated.
        allow_partial: on a shortfall free what may go; False: free nothing.
        recent_share: see `newest_last`.
        leaving_pages: where the caller frees only the head of the plan, how many; None: all of it.
    """
    held = view.n_pages
    if pages_to_free is None:
        pages_to_free = 0 if budget_pages is None else held + new_pages - budget_pages
    nothing = EvictionPlan(held_before=held, held_after=held, new_pages=new_pages, budget_pages=budget_pages)
    if pages_to_free <= 0:
        return nothing
    if not policy.evicts:
        refusal = f"policy '{policy.name}' never evicts; {pages_to_free} pages were asked for"
        return replace(nothing, shortfall_pages=pages_to_free, refusal=refusal)
    try:
        parts = policy.score_parts(view)
        scores = np.asarray(np.sum(list(parts.values()), axis=0), dtype=np.float32)
        ranking, fault = _checked_order(view, policy, max(0, held - pages_to_free), scores)
    except Exception as error:  # a user's policy must not end the engine, nor everybody's requests with it
        parts = {"page_index": view.page_index.astype(np.float32)}
        scores = parts["page_index"]
        ranking = Ranking(view.page_index[view.evictable])
        fault = f"policy '{policy.name}' raised {type(error).__name__}: {error}; the oldest pages go instead"
    staying = ranking.order.shape[0] - (pages_to_free if leaving_pages is None else leaving_pages)
    order, n_newest = newest_last(ranking.order, view, policy, staying, recent_share)
    shortfall = max(0, pages_to_free - order.shape[0])
    n_freed = 0 if shortfall and not allow_partial else min(pages_to_free, order.shape[0])
    ranked: list[int] = order.tolist()
    pages = tuple(ranked[:n_freed])
    row = np.searchsorted(view.page_index, order)
    place = np.searchsorted(view.page_index[view.evictable], order)
    freed_parts = np.stack(list(parts.values()), axis=1)[row[:n_freed]].tolist()
    return replace(
        nothing,
        pages=pages,
        order=tuple(ranked),
        scores=dict(zip(ranked, scores[row].tolist(), strict=True)),
        parts={page: dict(zip(parts, values, strict=True)) for page, values in zip(pages, freed_parts, strict=True)},
        quota=() if ranking.quota is None else tuple(ranking.quota[place].tolist()),
        inside_quota=() if ranking.inside_quota is None else tuple(ranking.inside_quota[place].tolist()),
        newest_last=n_newest,
        held_after=held - n_freed,
        shortfall_pages=shortfall,
        refusal=_refusal(view, pages_to_free, order.shape[0]) if shortfall else None,
        fault=fault,
    )


def _refusal(view: PageView, pages_to_free: int, n_evictable: int) -> str:
    pinned = int(view.pinned.sum())
    protected = int((view.protected & ~view.pinned).sum())
    return (
        f"{pages_to_free} pages have to go and {n_evictable} may: of {view.n_pages} held pages {pinned} are pinned "
        f"and {protected} protected (sinks, recent window, being written)"
    )


def _checked_order(view: PageView, policy: Policy, budget_pages: int, scores: FloatArray) -> tuple[Ranking, str | None]:
    """The policy's ranking if it is a permutation of the evictable pages, else plain score order and the fault."""
    candidates = view.page_index[view.evictable]
    finite = np.isfinite(scores)
    if not finite[view.evictable].all():
        scores = np.where(finite, scores, np.float32(-np.inf))
        plain = Ranking(ascending(candidates, scores[view.evictable]))
        return plain, f"policy '{policy.name}' gave a score that is not finite"
    ranking = policy.rank(view, budget_pages, scores)
    order = np.asarray(ranking.order, dtype=np.int64)
    if order.shape != candidates.shape or np.any(np.sort(order) != candidates):
        fault = f"policy '{policy.name}' gave an order that is no permutation of the evictable pages"
        return Ranking(ascending(candidates, scores[view.evictable])), fault
    return ranking._replace(order=order), None
