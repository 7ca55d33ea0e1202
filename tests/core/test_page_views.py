"""What a view of the held pages says of each, and that ranking them never loops over tokens."""

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
    Span,
    SpanFlag,
    build_page_view,
    get_policy,
    plan_eviction,
    policy_names,
)

CONFIG = MemDecayConfig()
PAGE = CONFIG.page_size_tokens


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
