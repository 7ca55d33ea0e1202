"""When key norms are read: never after the page could be planned, and seldom. No engine."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from memdecay_adapters.engine.norm_schedule import norms_to_measure
from memdecay_agents import MemDecayConfig, Observation, TokenState
from memdecay_agents.pages import build_page_view


def session(tokens: int, config: MemDecayConfig) -> TokenState:
    """A session whose prompt was computed and measured."""
    state = TokenState(config)
    state.extend(tokens, region="user")
    state.on_computed(tokens, 1)
    read_norms(state, 0)
    return state


def read_norms(state: TokenState, first: int) -> None:
    index, page = np.arange(state.computed_tokens), state.config.page_size_tokens
    newest = state.computed_tokens - first // page * page
    mass = np.full(index.size, 1 / index.size)
    state.observe(Observation(index, mass, key_norms=np.ones(newest, dtype=np.float32)))


def asked_in(states: dict[str, TokenState], config: MemDecayConfig, steps: int) -> list[dict[str, int]]:
    """Decode so many steps, measured at the stride; whose norms were asked for in each measured one."""
    page, asked = config.page_size_tokens, []
    eager = {name: state.computed_tokens for name, state in states.items()}  # measured in every measured step
    for step in range(1, steps + 1):
        for name, state in states.items():
            processed = state.computed_tokens
            view = build_page_view(state, np.arange(processed // page), processed, config)
            known = state.key_norm[: processed // page * page].reshape(-1, page)
            wanted = (np.arange(known.size) < eager[name]).reshape(-1, page) & view.evictable[:, None]
            assert (known[wanted] == 1).all(), f"{name} at {processed}: {config.recent_tokens} recent tokens"
            state.on_computed(1, 1)
        if step % config.measure_every_steps == 0:
            asked.append(norms_to_measure(states, [], config))
            for name, first in asked[-1].items():
                read_norms(states[name], first)
            eager = {name: state.computed_tokens for name, state in states.items()}
    return asked


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=4),
    st.sampled_from([16, 32]),
    st.integers(0, 80),
    st.integers(1, 20),
)
def test_norms_of_pages_that_may_go_are_known_as_if_they_were_read_whenever_attention_is(begins, page, recent, stride):
    config = MemDecayConfig(page_size_tokens=page, recent_tokens=recent, measure_every_steps=stride)
    asked_in({f"r{at}": session(tokens, config) for at, tokens in enumerate(begins)}, config, 120)


def test_eight_sessions_share_a_few_readings():
    config = MemDecayConfig(page_size_tokens=32)
    asked = asked_in({f"r{at}": session(200 + 5 * at, config) for at in range(8)}, config, 320)
    assert len(asked) == 20
    assert 10 <= sum(map(bool, asked)) <= 12  # ten pages fill in 320 steps; each is read once
    assert sum(map(len, asked)) <= 8 * 11


def test_a_prompts_are_read_at_once():
    config = MemDecayConfig()
    assert norms_to_measure({}, [("r", session(40, config))], config) == {"r": 40}
