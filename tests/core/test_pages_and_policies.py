import itertools
import math
import sys
from collections import Counter

import numpy as np
import pytest
from core_helpers import lay, pieces, state_of, view_of
from hypothesis import given
from hypothesis import strategies as st

from memdecay_agents import (
    REGIONS,
    MemDecayConfig,
    Observation,
    Policy,
    Span,
    SpanFlag,
    build_page_view,
    get_policy,
    plan_eviction,
    policy_names,
    register_policy,
)
from memdecay_agents.errors import PolicyError
from memdecay_agents.neighbours import neighbour_gain
from memdecay_agents.policies.random import RandomPolicy
from memdecay_agents.quotas import inside_quota, quota_pages
from memdecay_agents.ranks import unit_ranks

CONFIG = MemDecayConfig()
STRICT = MemDecayConfig(quota_bonus=None)
PAGE = CONFIG.page_size_tokens
EVICTING = [name for name in policy_names() if name != "full"]


# --- the view ---------------------------------------------------------------------------------


@given(pieces(), st.data())
def test_a_view_says_of_each_held_page_what_its_tokens_say(made, data):
    config = MemDecayConfig(recent_tokens=data.draw(st.integers(0, 40)), sink_pages=data.draw(st.integers(1, 2)))
    state = state_of(lay(made), config)
    n = state.n_tokens
    processed = data.draw(st.integers(0, n))
    n_pages = -(-n // PAGE)
    held = sorted(data.draw(st.sets(st.integers(0, n_pages + 1))))
    view = build_page_view(state, held, processed, config)
    assert view.page_index.tolist() == held
    for row, page in enumerate(held):
        tokens = range(page * PAGE, (page + 1) * PAGE)
        known = [t for t in tokens if t < n]
        assert view.token_index[row].tolist() == list(tokens)
        assert view.valid[row].tolist() == [t < processed for t in tokens]
        pinned = any(state.pinned[t] for t in known)
        protected = (
            page < config.sink_pages or tokens[-1] >= processed or tokens[-1] >= processed - config.recent_tokens
        )
        assert (view.pinned[row], view.protected[row]) == (pinned, protected)
        assert view.evictable[row] == (not pinned and not protected)
        for t in known:
            at = t - page * PAGE
            assert view.region[row, at] == state.region[t]
            assert view.age_ticks[row, at] == state.clock_ticks - state.refreshed_at_ticks[t]
            assert view.ewma_mass[row, at] == state.ewma_mass[t]
            weight = state.salience_weight[t]
            assert view.salience[row, at] == pytest.approx(state.salience_sum[t] / weight if weight else 0.0)
        if known:
            counts = Counter(REGIONS[state.region[t]] for t in known)
            most = [name for name, count in counts.items() if count == max(counts.values())]
            assert REGIONS[view.page_region[row]] == max(most, key=lambda name: config.regions[name].base_priority)
            superseded = sum(bool(state.flags[t] & SpanFlag.SUPERSEDED) for t in known)
            assert view.superseded[row] == (2 * superseded > len(known))


def test_unsorted_pages_are_sorted_and_no_pages_are_no_trouble():
    state = state_of([Span(0, 100, "user")], CONFIG)
    assert build_page_view(state, [3, 1, 3], 100, CONFIG).page_index.tolist() == [1, 3]
    empty = build_page_view(state, [], 100, CONFIG)
    for name in policy_names():
        policy = get_policy(name, CONFIG)
        assert policy.page_scores(empty).shape == (0,)
        assert policy.order(empty, 0, policy.page_scores(empty)).shape == (0,)


@given(pieces())
def test_without_pins_nothing_is_pinned_and_the_protected_stay(made):
    with_pins, without = view_of(lay(made), CONFIG), view_of(lay(made), MemDecayConfig(policy_pins=False))
    assert not without.pinned.any()
    assert np.array_equal(with_pins.protected, without.protected)


# --- ranks and quotas -------------------------------------------------------------------------


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


# --- scores -----------------------------------------------------------------------------------


def reference_score(view, row, at, config, norm_rank, sal_rank):
    profile = config.regions[REGIONS[view.region[row, at]]]
    base = profile.base_priority
    if view.flags[row, at] & SpanFlag.SUPERSEDED:
        base *= config.superseded_factor
    age = float(view.age_ticks[row, at])
    if config.policy == "paper":
        rate = math.log(2) / profile.half_life_ticks
        return base * math.exp(-rate * age) + config.paper_alpha * float(view.ewma_mass[row, at])
    half_life = profile.half_life_ticks or math.inf
    decay = 1 / (1 + age / half_life) if config.decay_form == "power_law" else 2 ** (-age / half_life)
    share = config.key_norm_share
    return base * decay + config.alpha * ((1 - share) * sal_rank[row, at] - share * norm_rank[row, at])


@given(
    pieces(),
    st.sampled_from(
        [
            MemDecayConfig.paper(),
            MemDecayConfig.paper(paper_alpha=7.0, policy_pins=False),
            MemDecayConfig(),
            MemDecayConfig(decay_form="power_law", alpha=1.5, key_norm_share=0.2),
            MemDecayConfig(policy_pins=False, superseded_factor=0.5),
        ]
    ),
    st.integers(0, 99),
)
def test_paper_and_memdecay_score_as_their_formulas_say(made, config, seed):
    view = view_of(lay(made), config, seed=seed)
    policy = get_policy(config.policy, config)
    ranks = []
    for values in (view.key_norm, view.salience):
        chosen = values[view.evictable].ravel()
        rank = np.zeros(values.shape)
        if chosen.size:
            below = (chosen[:, None] > chosen).sum(axis=1) + ((chosen[:, None] == chosen).sum(axis=1) - 1) / 2
            rank[view.evictable] = (below / (chosen.size - 1)).reshape(-1, PAGE)
        ranks.append(rank)
    want = np.zeros(view.region.shape)
    for row, at in np.ndindex(want.shape):
        want[row, at] = reference_score(view, row, at, config, *ranks)
    if config.policy == "memdecay":
        want += neighbour_gain(view, config.neighbours_up_to_pages)[:, None]
    assert np.allclose(policy.token_scores(view), want, rtol=1e-4, atol=1e-5)
    mean = np.asarray([want[row][view.valid[row]].mean() for row in range(view.n_pages)])
    assert np.allclose(policy.page_scores(view), mean, rtol=1e-4, atol=1e-5)
    assert np.allclose(sum(policy.score_parts(view).values()), mean, rtol=1e-4, atol=1e-5)


@given(pieces(), st.sampled_from(policy_names()))
def test_every_policy_gives_parts_that_add_up_and_an_order_of_the_evictable(made, name):
    config = MemDecayConfig.for_policy(name)
    view, policy = view_of(lay(made), config), get_policy(name, config)
    scores = policy.page_scores(view)
    assert scores.dtype == np.float32
    assert np.allclose(sum(policy.score_parts(view).values()), scores, rtol=1e-5, atol=1e-6)
    order = policy.order(view, max(0, view.n_pages - 2), scores)
    assert sorted(order) == view.page_index[view.evictable].tolist()


@given(pieces(min_size=4, max_length=120), st.sampled_from([n for n in EVICTING if n != "memdecay"]), st.integers(1, 9))
def test_the_kept_pages_have_the_highest_scores(made, name, n_freed):
    config = MemDecayConfig.for_policy(name)
    plan = plan_eviction(view_of(lay(made), config), get_policy(name, config), pages_to_free=n_freed)
    kept = [plan.scores[page] for page in plan.order[len(plan.pages) :]]
    assert max((plan.scores[page] for page in plan.pages), default=-1) <= min(kept, default=math.inf)


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


def test_superseded_pages_go_first_however_much_they_were_attended_to():
    spans = [Span(0, 320, "plan"), Span(320, 640, "user", SpanFlag.SUPERSEDED), Span(640, 1000, "scratchpad")]
    for seed_observations in (1, 4):
        view = view_of(spans, CONFIG, observations=seed_observations)
        order = plan_eviction(view, get_policy("memdecay", CONFIG), pages_to_free=5).order
        assert set(order[:20]) == set(range(20, 40))
        alike = MemDecayConfig(superseded_factor=1.0, quota_bonus=0.0)
        others = plan_eviction(view, get_policy("memdecay", alike), pages_to_free=5).order
        assert set(others[:20]) != set(range(20, 40))


def test_recency_keeps_sinks_and_a_window():
    config = MemDecayConfig(policy="recency")
    view = view_of([Span(0, 400, "tool_out")], config)
    plan = plan_eviction(view, get_policy("recency", config), budget_pages=10)
    assert plan.pages == tuple(range(1, 16))


def test_random_is_fixed_by_seed_session_and_page():
    view = view_of([Span(0, 4000, "user")], CONFIG)
    first = RandomPolicy(CONFIG).page_scores(view)
    assert np.array_equal(first, RandomPolicy(CONFIG).page_scores(view))
    assert not np.array_equal(first, RandomPolicy(MemDecayConfig(seed=1)).page_scores(view))
    state = state_of([Span(0, 4000, "user")], CONFIG)
    part = build_page_view(state, [3, 9], 4000, CONFIG, session_key="s")
    assert np.array_equal(RandomPolicy(CONFIG).page_scores(part), first[[3, 9]])
    other = build_page_view(state, np.arange(250), 4000, CONFIG, session_key="other")
    assert not np.array_equal(RandomPolicy(CONFIG).page_scores(other), first)
    assert 0.4 < first.mean() < 0.6
    assert len(set(first.tolist())) == first.size


def test_attention_baselines_keep_what_was_attended_to():
    state = state_of([Span(0, 160, "user")], CONFIG, observations=0)
    mass = np.full(160, 0.5 / 160, dtype=np.float32)
    mass[40] += 0.5
    state.observe(Observation(np.arange(160), mass))
    view = build_page_view(state, np.arange(10), 160, CONFIG)
    for name in ("accumulated_attention", "last_query"):
        plan = plan_eviction(view, get_policy(name, CONFIG), pages_to_free=1)
        assert plan.order[-1] == 2


def test_small_keys_stay():
    state = state_of([Span(0, 160, "user")], CONFIG, observations=0)
    norms = np.full(160, 9.0, dtype=np.float32)
    norms[40] = 1.0
    state.observe(Observation(np.arange(160), np.full(160, 1 / 160), key_norms=norms))
    view = build_page_view(state, np.arange(10), 160, CONFIG)
    assert plan_eviction(view, get_policy("key_norm", CONFIG), pages_to_free=1).order[-1] == 2


@pytest.mark.parametrize("name", policy_names())
def test_policies_that_say_they_ignore_attention_do(name):
    config = MemDecayConfig.for_policy(name)
    policy = get_policy(name, config)
    spans = [Span(0, 200, "plan"), Span(200, 400, "user")]
    blind, other = (view_of(spans, config, observations=count) for count in (0, 4))
    same = np.array_equal(policy.page_scores(blind), policy.page_scores(other))
    assert same == (not policy.uses_attention)


# --- the registry -----------------------------------------------------------------------------


def test_policies_are_found_by_name_and_can_be_added():
    class Mine(RandomPolicy):
        name = "mine_for_this_test"

    register_policy("mine_for_this_test", Mine)
    register_policy("mine_for_this_test", Mine)
    assert isinstance(get_policy("mine_for_this_test", CONFIG), Mine)
    with pytest.raises(PolicyError, match="taken"):
        register_policy("memdecay", Mine)
    with pytest.raises(PolicyError, match=r"unknown policy; known are memdecay, paper, random"):
        get_policy("nonsense", CONFIG)
    assert policy_names()[0] == CONFIG.policy


def test_a_policy_needs_token_scores():
    with pytest.raises(TypeError):
        Policy(CONFIG)


# --- cost -------------------------------------------------------------------------------------


def calls_of(work) -> int:
    """Python and C calls that a piece of work makes: what grows with a loop over tokens."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_ranking_makes_no_more_calls_for_more_tokens():
    policy = get_policy("memdecay", CONFIG)

    def calls(n_tokens: int) -> int:
        spans = [Span(start, start + 512, REGIONS[start // 512 % 7]) for start in range(0, n_tokens, 512)]
        state, held = state_of(spans, CONFIG), np.arange(n_tokens // 16)
        return calls_of(lambda: plan_eviction(build_page_view(state, held, n_tokens, CONFIG), policy, pages_to_free=1))

    assert calls(8192) <= 1.5 * calls(2048)
