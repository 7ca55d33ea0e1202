"""Made-up spans, states and views for the tests of the core."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from memdecay_agents import (
    REGIONS,
    MemDecayConfig,
    Observation,
    PageView,
    RequestHints,
    SessionId,
    SessionState,
    Span,
    SpanFlag,
    TokenState,
    build_page_view,
    get_policy,
)

FLAGS = [SpanFlag.NONE, SpanFlag.PINNED, SpanFlag.SUPERSEDED, SpanFlag.PINNED | SpanFlag.SUPERSEDED]


def lay(pieces, base: int = 0) -> list[Span]:
    """Spans end to end from (length, region, flags) pieces."""
    spans = []
    for length, region, flags in pieces:
        spans.append(Span(base, base + length, region, flags))
        base += length
    return spans


def pieces(*, min_size: int = 1, max_size: int = 8, max_length: int = 60, flags=FLAGS):
    """Pieces of a partition."""
    piece = st.tuples(st.integers(1, max_length), st.sampled_from(REGIONS), st.sampled_from(flags))
    return st.lists(piece, min_size=min_size, max_size=max_size)


def observation(token_index, rng: np.random.Generator, queries: int = 1) -> Observation:
    """Random attention on the given tokens, peaked, summing to 1."""
    index = np.asarray(token_index, dtype=np.int64)
    mass = rng.random(index.size) ** 6
    return Observation(index, mass / mass.sum(), queries, key_norms=1.0 + rng.random(index.size))


def state_of(spans, config: MemDecayConfig, *, observations: int = 3, seed: int = 0) -> TokenState:
    """A state with all tokens computed and some attention observed."""
    state = TokenState(config)
    n = spans[-1].end
    state.extend(n, spans=spans)
    rng = np.random.default_rng(seed)
    state.on_computed(n, 1)
    for _ in range(observations):
        state.advance(int(rng.integers(0, 40)))
        state.observe(observation(np.arange(n), rng, int(rng.integers(1, 5))))
    return state


def view_of(spans, config: MemDecayConfig, **kwargs) -> PageView:
    """All pages of such a state."""
    state = state_of(spans, config, **kwargs)
    page = config.page_size_tokens
    return build_page_view(state, np.arange(-(-state.n_tokens // page)), state.n_tokens, config, session_key="s")


def session(config: MemDecayConfig | None = None, **hints) -> SessionState:
    """A session of agent 'a' whose first turn has begun."""
    config = config or MemDecayConfig()
    spans = hints.setdefault("spans", [Span(0, 320, "tool_out")])
    state = SessionState(SessionId("t", "th", "a"), "a", config, get_policy(config.policy, config))
    state.begin_turn(RequestHints(agent="a", **hints), spans[-1][1])
    return state
