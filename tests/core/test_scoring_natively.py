"""The policies' arithmetic is the same with the native library and without it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memdecay_agents.config import MemDecayConfig
from memdecay_agents.observations import Observation
from memdecay_agents.pages import build_page_view
from memdecay_agents.policies.registry import get_policy
from memdecay_agents.spans import SpanFlag
from memdecay_agents.token_state import TokenState
from memdecay_kernels import implementation_name

REGIONS = ("system", "plan", "user", "tool_in", "tool_out", "retrieval", "scratchpad")


@pytest.fixture
def without_library(monkeypatch):
    def switch(off: bool) -> None:
        monkeypatch.setenv("MEMDECAY_KERNELS", "reference" if off else "auto")

    return switch


def life(config: MemDecayConfig, policy_name: str, seed: int, n: int, missing: list[int]):
    """A session's tokens after some measurements, and its view of the pages that are left."""
    rng = np.random.default_rng(seed)
    state = TokenState(config, get_policy(policy_name, config).refresh_rule())
    while state.n_tokens < n:
        state.extend(min(int(rng.integers(1, 60)), n - state.n_tokens), region=str(rng.choice(REGIONS)))
    state.on_computed(n - int(rng.integers(0, 20)), 3)
    state.set_flags(n // 3, n // 2, SpanFlag.SUPERSEDED)
    held = np.setdiff1d(np.arange(-(-n // 16)), missing)
    index = (held[:, None] * 16 + np.arange(16)).ravel()
    index = index[index < state.computed_tokens]
    for queries in (40, 1, 4):
        mass = rng.random(index.size).astype(np.float32) ** 9
        mass[rng.random(index.size) < 0.1] = 0.0
        state.observe(Observation(index, mass / max(mass.sum(), 1e-9), queries))
        state.advance(5)
    return state, build_page_view(state, held, state.computed_tokens, config)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    policy=st.sampled_from(["memdecay", "paper", "accumulated_attention"]),
    form=st.sampled_from(["power_law", "exponential"]),
    seed=st.integers(0, 999),
    n=st.integers(80, 700),
    missing=st.lists(st.integers(1, 40), max_size=12),
)
def test_same_state_same_view_same_scores(without_library, policy, form, seed, n, missing):
    config = MemDecayConfig.for_policy(policy, **({} if policy == "paper" else {"decay_form": form}))
    without_library(False)
    assert implementation_name().startswith("native")
    native_state, native_view = life(config, policy, seed, n, missing)
    native_parts = get_policy(policy, config).score_parts(native_view)
    without_library(True)
    assert implementation_name() == "reference"
    state, view = life(config, policy, seed, n, missing)
    parts = get_policy(policy, config).score_parts(view)
    for name, column in state.columns._asdict().items():
        np.testing.assert_allclose(getattr(native_state.columns, name), column, rtol=1e-4, atol=1e-5, err_msg=name)
    for name in ("pinned", "protected", "evictable", "page_region", "superseded"):
        np.testing.assert_array_equal(getattr(native_view, name), getattr(view, name), err_msg=name)
    assert native_parts.keys() == parts.keys()
    # the last bits of two saliences may order them differently: one rank of the evictable tokens
    slack = 2.0 / max(int(view.evictable.sum()) * 16 - 1, 1)
    for name, part in parts.items():
        np.testing.assert_allclose(native_parts[name], part, rtol=1e-4, atol=1e-5 + slack, err_msg=name)
