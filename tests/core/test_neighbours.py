"""Pages side by side: what the default policy gives for a held neighbour, and where quotas are too small to count."""

import numpy as np
import pytest
from core_helpers import state_of, view_of
from hypothesis import given
from hypothesis import strategies as st

from memdecay_agents import MemDecayConfig, Span, build_page_view, get_policy, plan_eviction
from memdecay_agents.neighbours import neighbour_gain

PAGE = 16


def view_with(held, config=None):
    """Pages of one region, all of the same worth but for noise in key norms."""
    config = config or MemDecayConfig()
    state = state_of([Span(0, 60 * PAGE, "user")], config)
    return build_page_view(state, sorted(held), 60 * PAGE, config)


@given(st.sets(st.integers(0, 59), min_size=1), st.sampled_from([0.0, 1.0, 3.0, 8.5]))
def test_pages_beside_a_held_one_gain_alike_and_pages_alone_nothing(held, few_pages):
    view = view_with(held)
    gain = neighbour_gain(view, few_pages)
    beside = np.asarray([page - 1 in held or page + 1 in held for page in sorted(held)])
    n = int(view.evictable.sum())
    assert gain.shape == (len(held),)
    assert not gain[~beside].any()
    if n and few_pages:
        assert gain[beside] == pytest.approx(min(1.0, few_pages / n) ** 2)
    else:
        assert not gain.any()


def test_the_gain_falls_with_the_pages_that_may_go():
    gains = [float(neighbour_gain(view_with(range(n)), 3.0)[0]) for n in (6, 12, 24, 48)]
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] < 0.01 < 0.05 < gains[1]


def test_of_few_pages_the_one_alone_goes_and_of_many_the_worst():
    config, quiet = MemDecayConfig(), MemDecayConfig(neighbours_up_to_pages=0.0)
    for held, alone in (([0, 3, 4, 9, 20, 21, 57, 58, 59], 9), ([0, 6, 7, 11, 12, 25, 57, 58, 59], 25)):
        first = [plan_eviction(view_with(held, c), get_policy("memdecay", c), pages_to_free=1) for c in (config, quiet)]
        assert first[0].pages == (alone,)
        assert first[0].parts[alone]["neighbours"] == 0.0
    many = [plan_eviction(view_with(range(60), c), get_policy("memdecay", c), pages_to_free=9) for c in (config, quiet)]
    assert set(many[0].pages) == set(many[1].pages)


def test_a_quota_of_one_page_gives_no_bonus_and_one_of_two_pages_does():
    config = MemDecayConfig()
    regions = ("user", "plan", "retrieval", "scratchpad")
    spans = [Span(n * 64 * PAGE, (n + 1) * 64 * PAGE, region) for n, region in enumerate(regions)]
    whole = view_of(spans, config, observations=0)
    policy = get_policy("memdecay", config)
    for stays, bonus in ((4, 0.0), (7, 0.0), (8, config.quota_bonus)):
        fixed = whole.n_pages - int(whole.evictable.sum())
        ranking = policy.rank(whole, stays + fixed, policy.page_scores(whole))
        assert int(ranking.inside_quota.sum()) == 4 * (stays // 4)
        assert ranking.quota[ranking.inside_quota] == pytest.approx(bonus)
        assert (ranking.quota[~ranking.inside_quota] <= 0.0).all()
