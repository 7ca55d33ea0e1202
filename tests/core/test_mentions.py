"""What is named again: which pages are close to it, and that they stay where others go."""

import numpy as np
import pytest
from core_helpers import lay, pieces, state_of
from hypothesis import given
from hypothesis import strategies as st

from memdecay_agents import MemDecayConfig, Span, build_page_view, get_policy, plan_eviction
from memdecay_agents.mentions import CLOSE_TOKENS, TELLING_PART, close_to_mentioned
from memdecay_agents.ranks import ranks_within
from memdecay_agents.surprisal import RARE_ID

CONFIG = MemDecayConfig()
PAGE = CONFIG.page_size_tokens
NAME = [70_001, 70_002]


def view_with(ids, config=CONFIG, region="user", held=None):
    state = state_of([Span(0, len(ids), region)], config)
    state.counts.learn(ids, np.full(len(ids), state.table.refers[config.region_index(region)]))
    held = np.arange(-(-len(ids) // PAGE)) if held is None else held
    return build_page_view(state, held, len(ids), config)


def conversation(at, later, n_tokens=40 * PAGE, name=NAME, seed=0):
    """Words of much the same weight; the name stands at ``at``, and again at ``later``, unless that is None."""
    ids = np.random.default_rng(seed).permutation(np.arange(10_000, 10_000 + n_tokens))
    for place in (at, later):
        if place is not None:
            ids[place : place + len(name)] = name
    return ids.tolist()


@given(pieces(max_length=120), st.integers(0, 99), st.data())
def test_a_page_is_close_to_what_is_named_on_it_or_a_few_tokens_from_it(made, seed, data):
    state = state_of(lay(made), CONFIG)
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 90_000, state.n_tokens)
    for at in rng.integers(0, max(1, state.n_tokens - 2), 8):
        ids[at : at + 2] = ([70_001, 70_002], [70_003, 70_004], [70_005, 3])[rng.integers(3)][: ids[at : at + 2].size]
    state.counts.learn(ids)
    n_pages = -(-state.n_tokens // PAGE)
    held = np.asarray(sorted(data.draw(st.sets(st.integers(0, n_pages - 1), min_size=1))))
    view = build_page_view(state, held, state.n_tokens, CONFIG)
    telling = ranks_within(view.surprisal, view.evictable) >= 1 - TELLING_PART
    named = view.token_index[view.named_later & telling & view.evictable[:, None]].tolist()
    wanted = [
        any(page * PAGE - CLOSE_TOKENS <= token < (page + 1) * PAGE + CLOSE_TOKENS for token in named) for page in held
    ]
    assert close_to_mentioned(view).tolist() == wanted


@pytest.mark.parametrize(("place", "close"), [(0, {11, 12}), (6, {11, 12}), (8, {12, 13}), (14, {12, 13})])
def test_a_later_mention_saves_the_page_it_names_and_the_one_close_beside_it(place, close):
    page = 12
    at = page * PAGE + place
    quiet = MemDecayConfig(mention_bonus=0.0)
    for seed in range(5):
        named, unnamed = (conversation(at, later, seed=seed) for later in (30 * PAGE, None))
        view = view_with(named)
        assert set(view.page_index[close_to_mentioned(view)].tolist()) == close
        assert not close_to_mentioned(view_with(unnamed)).any()

        def place_of(ids, config, page=page):
            plan = plan_eviction(view_with(ids, config), get_policy("memdecay", config), pages_to_free=1)
            return plan.order.index(page) / len(plan.order)

        assert place_of(named, CONFIG) > 0.9
        assert place_of(named, CONFIG) >= place_of(named, quiet)


def test_what_is_read_and_common_words_and_what_is_gone_mention_nothing():
    at, later = 12 * PAGE + 8, 30 * PAGE
    assert close_to_mentioned(view_with(conversation(at, later))).any()
    assert not close_to_mentioned(view_with(conversation(at, later), region="retrieval")).any()
    assert not close_to_mentioned(view_with(conversation(at, later, name=[70_001, RARE_ID - 1]))).any()
    gone = np.asarray([page for page in range(40) if page not in (12, 13)])
    assert not close_to_mentioned(view_with(conversation(at, later), held=gone)).any()


def test_the_bonus_is_a_part_of_the_score_that_an_explanation_names():
    ids = conversation(12 * PAGE + 8, 30 * PAGE)
    for bonus in (0.0, 0.5):
        config = MemDecayConfig(mention_bonus=bonus)
        view, policy = view_with(ids, config), get_policy("memdecay", config)
        parts = policy.score_parts(view)["mentions"]
        assert parts.tolist() == [bonus if page in (12, 13) else 0.0 for page in range(40)]
