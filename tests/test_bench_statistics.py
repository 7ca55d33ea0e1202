import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memdecay_adapters.bench.statistics import MINIMUM_PAIRS, paired_ratio


def test_the_median_ratio_and_its_interval():
    result = paired_ratio([float(n) for n in range(1, 22)], [10.0] * 21)
    assert (result.median, result.low, result.high, result.pairs) == (1.1, 0.6, 1.6, 21)
    assert result.confidence == pytest.approx(0.9734, abs=1e-4)  # 1 - 2 P(Binomial(21, 1/2) <= 5)


def test_a_bound_is_met_by_the_better_end_and_never_on_few_pairs():
    few = paired_ratio([1.0] * (MINIMUM_PAIRS - 1), [1.0] * (MINIMUM_PAIRS - 1))
    assert not few.within(1.02)
    enough = paired_ratio([1.0] * 8 + [1.1] * 8, [1.0] * 16)
    assert enough.within(1.02)
    assert not paired_ratio([1.05] * 15, [1.0] * 15).within(1.02)


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=40))
def test_the_interval_holds_the_median(ratios):
    result = paired_ratio(ratios, [1.0] * len(ratios))
    assert min(ratios) <= result.low <= result.median <= result.high <= max(ratios)


def test_the_interval_covers_the_true_median_as_often_as_it_says():
    draw = random.Random(1)
    covered = 0
    for _ in range(2000):
        result = paired_ratio([draw.lognormvariate(0.0, 0.3) for _ in range(15)], [1.0] * 15)
        covered += result.low <= 1.0 <= result.high
    assert result.confidence >= 0.95
    assert covered / 2000 >= 0.95


@pytest.mark.parametrize(("ours", "stock"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0])])
def test_what_is_no_pair_is_refused(ours, stock):
    with pytest.raises(ValueError, match=r"pair|above 0"):
        paired_ratio(ours, stock)
