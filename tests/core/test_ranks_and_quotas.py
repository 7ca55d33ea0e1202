"""Ranks and quotas: the functions alone, and what quotas do to the order of eviction."""

import itertools
import math

import numpy as np
import pytest
from core_helpers import lay, pieces, view_of
from hypothesis import given
from hypothesis import strategies as st

from memdecay_agents import REGIONS, MemDecayConfig, Span, SpanFlag, get_policy, plan_eviction
from memdecay_agents.quotas import inside_quota, quota_pages
from memdecay_agents.ranks import unit_ranks

CONFIG = MemDecayConfig()
STRICT = MemDecayConfig(quota_bonus=None)


@given(st.lists(st.integers(-5, 5) | st.floats(-10, 10, width=32), max_size=60))
def test_ranks_order_as_the_values_do_and_share_ties(values):
    array = np.asarray(values, dtype=np.float32)
    ranks = unit_ranks(array)
    n = array.size
    for i in range(n):
        below, equal = int((array < array[i]).sum()), int((array == array[i]).sum())
        want = (below + (equal - 1) / 2) / (n - 1) if n > 1 else 0.5
        assert ranks[i] == pytest.approx(want, abs=1e-5)


@given(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=40), st.integers(-8, 8))
def test_ranks_ignore_magnitude(values, exponent):
    array = np.asarray(values, dtype=np.float32)
    assert np.allclose(unit_ranks(array), unit_ranks(array.astype(np.float64) ** 3 * 2.0**exponent), rtol=1e-6)


@given(st.lists(st.floats(0, 3), min_size=1, max_size=8), st.data(), st.integers(-2, 50))
def test_quotas_share_the_budget_by_weight_among_regions_present(weights, data, budget):
    weight = np.asarray(weights, dtype=np.float64)
    present = np.asarray(data.draw(st.lists(st.booleans(), min_size=len(weights), max_size=len(weights))))
    quota = quota_pages(weight, present, budget)
    assert not quota[~present].any()
    assert quota.sum() <= max(0, budget)
    total = float(weight[present].sum())
    for r in np.flatnonzero(present):
        if total > 0 and budget > 0:
            assert budget * float(weight[r]) / total - 1 < quota[r] <= budget * float(weight[r]) / total + 1e-6


@given(st.data(), st.integers(0, 40))
def test_the_best_of_each_region_are_inside_its_quota(data, n):
    region = np.asarray(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), dtype=np.int8)
    scores = np.asarray(data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)), dtype=np.float32)
    eligible = np.asarray(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=bool)
    quota = np.asarray(data.draw(st.lists(st.integers(0, 6), min_size=4, max_size=4)))
    inside = inside_quota(region, scores, eligible, quota)
    assert not inside[~eligible].any()
    for r in range(4):
        mine = np.flatnonzero(eligible & (region == r))
        best = sorted(mine, key=lambda i: (scores[i], i))[max(0, mine.size - int(quota[r])) :]
        assert set(np.flatnonzero(inside & (region == r))) == set(best)


# --- in the order of eviction -----------------------------------------------------------------


@given(pieces(min_size=4, max_length=120, flags=[SpanFlag.NONE]), st.integers(0, 99), st.integers(1, 12))
def test_a_strict_quota_is_kept_with_the_best_within_it(made, seed, n_freed):
    view, policy = view_of(lay(made), STRICT, seed=seed), get_policy("memdecay", STRICT)
    plan = plan_eviction(view, policy, pages_to_free=n_freed)
    if plan.shortfall_pages:
        return
    region = {int(page): int(r) for page, r in zip(view.page_index, view.page_region, strict=True)}
    evictable_budget = len(plan.order) - n_freed
    present = {region[page] for page in plan.order}
    weights = {r: CONFIG.regions[REGIONS[r]].effective_quota_weight for r in present}
    for r in present:
        mine = [page for page in plan.order if region[page] == r]
        kept = [page for page in mine if page not in plan.pages]
        quota = math.floor(evictable_budget * weights[r] / sum(weights.values()) + 1e-6)
        assert len(kept) >= min(quota, len(mine))
        lost = max((plan.scores[page] for page in mine if page in plan.pages), default=-math.inf)
        assert lost <= min((plan.scores[page] for page in kept), default=math.inf)


@given(pieces(min_size=4, max_length=120), st.integers(0, 99), st.integers(1, 12), st.floats(0, 2))
def test_a_soft_quota_moves_pages_by_its_bonus_and_no_further(made, seed, n_freed, bonus):
    config = MemDecayConfig(quota_bonus=bonus)
    view = view_of(lay(made), config, seed=seed)
    policy = get_policy("memdecay", config)
    plan = plan_eviction(view, policy, pages_to_free=n_freed)
    row = {page: at for at, page in enumerate(view.page_index.tolist())}
    structure = policy.score_parts(view)["structure"]
    superseded = [bool(view.superseded[row[page]]) for page in plan.order]
    assert superseded == sorted(superseded, reverse=True)  # they go first
    for earlier, later in itertools.pairwise(plan.order):
        # at most: inside a quota; at least: outside, where the region's priority does not count
        most = plan.scores[later] + bonus
        least = plan.scores[earlier] - structure[row[earlier]]
        assert view.superseded[row[earlier]] or least <= most + 1e-5


def test_superseded_pages_have_no_quota_and_go_first():
    spans = [Span(0, 320, "plan", SpanFlag.SUPERSEDED), Span(320, 640, "plan"), Span(640, 720, "user")]
    view = view_of(spans, CONFIG, observations=0)
    plan = plan_eviction(view, get_policy("memdecay", CONFIG), pages_to_free=19)
    assert set(plan.pages) == set(range(1, 20))
