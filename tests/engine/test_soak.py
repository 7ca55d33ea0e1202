"""What a soak concludes from its figures; the soak itself takes minutes: `make soak`."""

from __future__ import annotations

import pytest

from tests.engine.soak import MOST_GROWTH_MIB, memory_levels, missed_bounds

GOOD = {"chaos_operations": 2000, "soak_evictions": 10_000, "leaked_blocks": 0, "rss_growth_mib": 1.0, "preemptions": 9}


def test_memory_is_judged_after_its_warm_up_and_without_its_spikes():
    warming_up = [float(mib) for mib in range(100)]
    flat = [100.0] * 99
    assert memory_levels([*warming_up, *flat, 500.0, *flat, 100.0]) == (100.0, 100.0)
    assert memory_levels([*warming_up, *flat, 100.0, *[130.0] * 100]) == (100.0, 130.0)
    assert memory_levels([7.0]) == (7.0, 7.0)


def test_a_good_soak_misses_nothing():
    assert missed_bounds(GOOD, 2000, 10_000) == []


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("chaos_operations", 1999),
        ("soak_evictions", 9999),
        ("leaked_blocks", 1),
        ("rss_growth_mib", MOST_GROWTH_MIB + 0.1),
        ("preemptions", 0),
    ],
)
def test_each_bound_is_missed_by_its_own_figure(figure, value):
    assert len(missed_bounds({**GOOD, figure: value}, 2000, 10_000)) == 1
