"""How each policy scores pages, what follows for what stays, and how policies are found by name."""

import math

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

CONFIG = MemDecayConfig()
PAGE = CONFIG.page_size_tokens
EVICTING = [name for name in policy_names() if name != "full"]


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
