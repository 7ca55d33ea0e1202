import copy
import math
import pickle

import numpy as np
import pytest
from core_helpers import lay, observation, pieces, state_of
from hypothesis import given
from hypothesis import strategies as st

from memdecay_agents import REGIONS, MemDecayConfig, Observation, RefreshRule, Span, SpanFlag, TokenState
from memdecay_agents.errors import ObservationError, RegionError, SpanError
from memdecay_agents.salience import local_salience
from memdecay_kernels.native.host import HostColumns

CONFIG = MemDecayConfig()
COLUMNS = ("ewma_mass", "accumulated_relative", "salience_sum", "salience_weight", "last_query_mass")


def user_state(n: int, config: MemDecayConfig = CONFIG, refresh: RefreshRule | None = None) -> TokenState:
    state = TokenState(config, refresh)
    state.extend(n, region="user")
    state.on_computed(n, 1)
    return state


@given(st.integers(1, 200), st.integers(1, 300), st.integers(0, 2**16), st.floats(0.01, 1.0))
def test_a_batch_of_w_queries_counts_as_w_single_ones(n, queries, seed, ewma):
    config = MemDecayConfig(ewma_factor=ewma)
    once, singly = user_state(n, config), user_state(n, config)
    rng = np.random.default_rng(seed)
    start = observation(np.arange(n), rng)
    batch = observation(np.arange(n), rng, queries)
    for state in (once, singly):
        state.observe(start)
    once.observe(batch)
    for _ in range(queries):
        singly.observe(Observation(batch.token_index, batch.mass, 1))
    for name in COLUMNS:
        assert np.allclose(getattr(once, name), getattr(singly, name), rtol=1e-3, atol=1e-5), name
    assert np.array_equal(once.refreshed_at_ticks, singly.refreshed_at_ticks)
    assert once.observed_queries == singly.observed_queries == queries + 1


@given(st.integers(1, 120), st.integers(0, 2**16))
def test_evidence_reaches_the_retained_tokens_only(n, seed):
    rng = np.random.default_rng(seed)
    state = user_state(n)
    state.observe(observation(np.arange(n), rng))
    before = {name: getattr(state, name).copy() for name in COLUMNS}
    kept = np.flatnonzero(rng.random(n) < 0.5)
    kept = kept if kept.size else np.asarray([n - 1])
    seen = observation(kept, rng, 2)
    state.observe(seen)
    gone = np.setdiff1d(np.arange(n), kept)
    for name in COLUMNS:
        assert np.array_equal(getattr(state, name)[gone], before[name][gone])
    assert np.allclose(state.last_query_mass[kept], seen.mass)
    # relative mass: 1 is the uniform level over the retained tokens
    gained = state.accumulated_relative[kept] - before["accumulated_relative"][kept]
    assert np.allclose(gained, 2 * kept.size * seen.mass, rtol=1e-3, atol=1e-3)


@given(
    st.lists(st.floats(0, 50, width=32), min_size=1, max_size=80),
    st.integers(1, 20),
)
def test_salience_is_the_log_ratio_to_the_neighbourhood(values, neighbours):
    relative = np.asarray(values, dtype=np.float32)
    got = local_salience(relative, neighbours=neighbours, floor=1e-3)
    for i in range(relative.size):
        around = np.maximum(relative[max(0, i - neighbours) : i + neighbours + 1], 1e-3)
        want = math.log(max(float(relative[i]), 1e-3) / float(np.mean(around, dtype=np.float64)))
        assert got[i] == pytest.approx(want, abs=1e-3)


@given(st.lists(st.floats(0.125, 50, width=32), min_size=1, max_size=60), st.floats(0.1, 10))
def test_salience_does_not_depend_on_the_overall_level(values, factor):
    relative = np.asarray(values, dtype=np.float32)
    one = local_salience(relative, neighbours=16, floor=1e-9)
    other = local_salience(relative * np.float32(factor), neighbours=16, floor=1e-9)
    assert np.allclose(one, other, atol=1e-3)


@given(st.integers(1, 100), st.integers(0, 40))
def test_salience_leaves_out_tokens_near_the_query(n, min_age):
    state = user_state(n, MemDecayConfig(salience_min_age_tokens=min_age))
    state.observe(observation(np.arange(n), np.random.default_rng(0), 3))
    old = np.arange(n) <= n - 1 - min_age
    assert np.array_equal(state.salience_weight > 0, old)
    assert set(state.salience_weight[old]) <= {3.0}


def test_a_token_above_the_relative_threshold_is_refreshed_and_no_other():
    config = MemDecayConfig(refresh_threshold_relative=3.0)
    state = user_state(10, config)
    mass = np.full(10, 0.02, dtype=np.float32)
    mass[4] = 0.82  # relative 8.2
    state.advance(100)
    before = state.refreshed_at_ticks.copy()
    state.observe(Observation(np.arange(10), mass))
    assert state.refreshed_at_ticks[4] == state.clock_ticks
    assert np.array_equal(np.delete(state.refreshed_at_ticks, 4), np.delete(before, 4))


def test_paper_refreshes_on_the_raw_mass_and_never_never_does():
    mass = np.full(10, 0.1, dtype=np.float32)  # uniform: relative 1, raw 0.1
    for refresh, expected in (
        (RefreshRule("raw_mass", 0.05), 10),
        (RefreshRule("raw_mass", 0.2), 0),
        (RefreshRule("never"), 0),
    ):
        state = user_state(10, CONFIG, refresh)
        state.advance(7)
        state.observe(Observation(np.arange(10), mass))
        assert int((state.refreshed_at_ticks == state.clock_ticks).sum()) == expected
    assert TokenState(MemDecayConfig.paper()).refresh.kind == "raw_mass"


def test_key_norms_of_the_newest_tokens_are_kept_and_later_ones_are_asked_for():
    state = user_state(40)
    kept = np.asarray([0, 1, 2, 30, 31, 32])
    mass = np.full(6, 1 / 6)
    state.observe(Observation(kept, mass, key_norms=[3.0, 2.0, 1.0]))
    assert state.normed_tokens == 33
    assert state.key_norm[[0, 2, 30, 31, 32]].tolist() == [0.0, 0.0, 3.0, 2.0, 1.0]
    state.observe(Observation(kept, mass))
    assert state.normed_tokens == 33
    state.truncate(31)
    assert state.normed_tokens == 31
    state.reset_cache()
    assert state.normed_tokens == 0
    assert not state.key_norm.any()


def test_last_query_mass_is_taken_where_it_was_measured():
    state = user_state(3)
    state.observe(Observation([0, 1, 2], [0.2, 0.3, 0.5], 4, last_query_mass=[0.6, 0.4, 0.0]))
    assert state.last_query_mass.tolist() == pytest.approx([0.6, 0.4, 0.0])
    state.observe(Observation([], []))
    assert state.observed_queries == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 1], [0.5, math.nan]), "NaN"),
        (([0, 1], [0.5, math.inf]), "NaN or infinity"),
        (([0, 1], [0.5, -0.1]), "negative"),
        (([0, 1], [0.9, 0.9]), "sums to 1.8"),
        (([1, 1], [0.5, 0.5]), "strictly increasing"),
        (([1, 0], [0.5, 0.5]), "strictly increasing"),
        (([-1, 0], [0.5, 0.5]), "strictly increasing"),
        (([0, 1], [0.5]), "masses for"),
        (([[0, 1]], [[0.5, 0.5]]), "masses for"),
        (([0], [0.5], 0), "0 represented"),
        (([0], [0.5], 1, True, [0.1, 0.2]), "last-query"),
        (([0], [0.5], 1, True, [math.nan]), "last_query_mass holds NaN"),
        (([0], [0.5], 1, True, None, [1.0, 1.0]), "2,.*key norms"),
        (([0], [0.5], 1, True, None, [math.nan]), "no norm"),
        (([0], [0.5], 1, True, None, [-1.0]), "no norm"),
    ],
)
def test_impossible_observations_are_refused(arguments, message):
    with pytest.raises(ObservationError, match=message):
        Observation(*arguments)


def test_an_observation_of_tokens_that_do_not_exist_changes_nothing():
    state = user_state(4)
    with pytest.raises(ObservationError, match="token 4, and the session has 4"):
        state.observe(Observation([0, 4], [0.5, 0.5]))
    assert not state.ewma_mass.any()
    assert state.observed_queries == 0


@pytest.mark.parametrize(
    ("unit", "after_prefill", "after_decode", "ages"),
    [
        ("tokens", 40, 43, [42, 3, 0]),
        ("decode_steps", 1, 4, [4, 3, 0]),
        ("turns", 1, 1, [0, 0, 0]),
    ],
)
def test_each_clock_counts_its_unit(unit, after_prefill, after_decode, ages):
    state = TokenState(MemDecayConfig(clock_unit=unit))
    state.extend(40, region="user")
    state.on_turn_start()
    state.on_computed(24, 0)
    state.on_computed(16, 1)
    assert state.clock_ticks == after_prefill
    for _ in range(3):
        state.on_computed(1, 1)
    assert state.clock_ticks == after_decode
    assert state.n_tokens == state.computed_tokens == 43
    assert [state.clock_ticks - state.refreshed_at_ticks[i] for i in (0, 39, 42)] == ages
    assert REGIONS[state.region[42]] == "scratchpad"


def test_chunking_does_not_change_the_clocks():
    config = MemDecayConfig(clock_unit="tokens")
    whole, chunks = TokenState(config), TokenState(config)
    whole.on_computed(100, 1)
    for _ in range(10):
        chunks.on_computed(10, 0)
    assert np.array_equal(whole.refreshed_at_ticks, chunks.refreshed_at_ticks)


@given(pieces(), pieces(), st.data())
def test_truncating_and_extending_again_is_as_if_never_extended(first, second, data):
    spans = lay(first)
    state, fresh = state_of(spans, CONFIG), state_of(spans, CONFIG)
    n = state.n_tokens
    more = lay(second, n)
    state.extend(more[-1].end - n, spans=more)
    state.on_computed(more[-1].end - n, 1)
    state.observe(Observation([more[-1].end - 1], [1.0]))
    state.truncate(n)
    state.truncate(n + 5)
    assert state.n_tokens == state.computed_tokens == n
    for name in (*COLUMNS, "region", "flags", "pinned", "refreshed_at_ticks"):
        assert np.array_equal(getattr(state, name), getattr(fresh, name)), name
    state.extend(3, region="plan")
    assert not state.ewma_mass[n:].any()
    assert not state.flags[n:].any()


@given(pieces(), st.sets(st.sampled_from(REGIONS)))
def test_pins_come_from_configuration_request_and_flag(made, pins):
    spans = lay(made)
    state = state_of(spans, CONFIG, observations=0)
    state.set_pins(pins)
    for span in spans:
        expected = span.region == "system" or span.region in pins or bool(span.flags & SpanFlag.PINNED)
        assert set(state.pinned[span.start : span.end].tolist()) == {expected}
    state.set_pins(())
    state.set_flags(0, 1, SpanFlag.PINNED)
    assert state.pinned[0]


def test_reset_cache_forgets_evidence_and_keeps_tokens():
    spans = [Span(0, 30, "system"), Span(30, 90, "user", SpanFlag.SUPERSEDED)]
    state, fresh = state_of(spans, CONFIG), TokenState(CONFIG)
    fresh.extend(90, spans=spans)
    state.reset_cache()
    for name in (*COLUMNS, "region", "flags", "pinned", "refreshed_at_ticks"):
        assert np.array_equal(getattr(state, name), getattr(fresh, name)), name
    assert (state.computed_tokens, state.clock_ticks, state.observed_queries) == (0, 0, 0)
    state.reset()
    assert state.n_tokens == 0


def test_bad_extensions_register_nothing():
    state = TokenState(CONFIG)
    with pytest.raises(SpanError):
        state.extend(10, spans=[Span(0, 9, "user")])
    with pytest.raises(RegionError):
        state.extend(10, region="nonsense")
    with pytest.raises(RegionError):
        state.set_pins(["nonsense"])
    assert state.n_tokens == 0
    assert state.pins == frozenset()


def test_a_copy_of_the_columns_lies_elsewhere_and_is_found_there() -> None:
    tokens = TokenState(MemDecayConfig())
    tokens.extend(40, region="user")
    shown = tokens.columns
    assert isinstance(shown, HostColumns)
    assert shown.addresses.ewma_mass == shown.ewma_mass.ctypes.data
    for other in (copy.deepcopy(shown), pickle.loads(pickle.dumps(shown))):
        assert other.addresses.ewma_mass == other.ewma_mass.ctypes.data != shown.addresses.ewma_mass
    tokens.extend(4000, region="user")
    assert tokens.columns.addresses.region == tokens.columns.region.ctypes.data


@given(
    st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["", "tool_out", "plan"])), max_size=40),
    st.sampled_from(["decode_steps", "tokens", "turns"]),
)
def test_decode_steps_told_one_by_one_registered_before_and_told_at_once_are_the_same(steps, unit):
    states = [user_state(10, MemDecayConfig(clock_unit=unit)) for _ in range(3)]
    one_by_one, registered, at_once = states
    for count, change in steps:
        for state in states:
            if change == "plan":
                state.set_pins(() if state.pins else ("plan",))
            elif change:
                state.output_region = "plan" if state.output_region == change else change
        for _ in range(count):
            one_by_one.on_computed(1, 1)
        for _ in range(count):  # registered before they are computed, as a prompt is
            registered.extend(1)
            registered.on_computed(1, 1)
        at_once.on_decoded(count)
    for other in (registered, at_once):
        assert one_by_one.n_tokens == other.n_tokens == one_by_one.computed_tokens == other.computed_tokens
        assert one_by_one.clock_ticks == other.clock_ticks
        for name in ("region", "flags", "pinned", "refreshed_at_ticks", *COLUMNS):
            assert np.array_equal(getattr(one_by_one, name), getattr(other, name)), name
