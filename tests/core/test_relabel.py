"""A turn's hints may name earlier tokens anew: labels change, history does not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memdecay_agents import MemDecayConfig, Span, SpanFlag
from memdecay_agents.errors import SpanError
from memdecay_agents.spans import check_partition, clip, coarsen
from memdecay_agents.token_state import TokenState

REGIONS = ["system", "plan", "user", "tool_out"]


@st.composite
def partitions(draw: st.DrawFn, length: int = 60) -> list[Span]:
    cuts = sorted(draw(st.sets(st.integers(1, length - 1), max_size=6)))
    edges = [0, *cuts, length]
    return [
        Span(a, b, draw(st.sampled_from(REGIONS)), SpanFlag(draw(st.integers(0, 3))))
        for a, b in itertools.pairwise(edges)
    ]


@given(partitions(), st.integers(0, 60), st.integers(0, 60))
def test_clipping_a_partition_partitions_the_part(spans, a, b):
    start, end = min(a, b), max(a, b)
    if start < end:
        check_partition(clip(spans, start, end), start, end, REGIONS)
    assert clip(spans, start, start) == []


@given(partitions(), partitions(), st.integers(1, 60))
def test_relabelled_tokens_are_as_if_registered_so(first, second, length):
    config = MemDecayConfig()
    state, expected = TokenState(config), TokenState(config)
    state.extend(60, spans=first)
    state.on_computed(60, 0)
    ages = state.refreshed_at_ticks.copy()
    state.relabel(clip(second, 0, length))
    expected.extend(60, spans=[*clip(second, 0, length), *clip(first, length, 60)])
    assert np.array_equal(state.region, expected.region)
    assert np.array_equal(state.flags, expected.flags)
    assert np.array_equal(state.pinned, expected.pinned)
    assert np.array_equal(state.refreshed_at_ticks, ages)


def test_labels_beyond_the_tokens_are_refused_and_nothing_changes():
    state = TokenState(MemDecayConfig())
    state.extend(10, region="user")
    before = state.region.copy()
    with pytest.raises(SpanError):
        state.relabel([Span(0, 12, "system")])
    assert np.array_equal(state.region, before)


@given(partitions(length=400), st.integers(1, 6))
def test_coarse_spans_partition_and_protect_no_less(spans, most):
    config = MemDecayConfig()
    coarse = coarsen(spans, config, most)
    assert len(coarse) <= max(most, 1)
    check_partition(coarse, 0, 400, REGIONS)

    def protection(given: list[Span]) -> list[tuple[bool, bool, float]]:
        return [
            (bool(s.flags & SpanFlag.PINNED), config.regions[s.region].pinned, config.regions[s.region].base_priority)
            for s in given
            for _ in range(s.start, s.end)
        ]

    if len(coarse) < len(spans):
        pairs = zip(protection(spans), protection(coarse), strict=True)
        assert all(before[0] <= after[0] and before[1:] <= after[1:] for before, after in pairs)


def test_few_spans_stay_as_they_are():
    spans = [Span(0, 3, "system"), Span(3, 40, "user")]
    assert coarsen(spans, MemDecayConfig(), 2) == spans
