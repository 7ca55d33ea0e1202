"""The computed costs: the README shows what the program prints, and the bound moves as its resources do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from memdecay_kernels.cuda.roofline import (
    BATCHES,
    H200,
    QWEN25_3B,
    SAMPLINGS,
    mass_seconds,
    rank_seconds,
    rank_sentence,
    step_share,
    table,
)

README = Path(__file__).parents[2] / "kernels" / "README.md"


def test_the_readme_shows_what_is_computed():
    readme = README.read_text()
    assert table() in readme
    assert rank_sentence() in " ".join(readme.split()), "paste the output of: python -m memdecay_kernels.cuda.roofline"


def test_keys_that_stay_in_the_cache_are_read_from_memory_once():
    sampling = SAMPLINGS[-1]
    no_launch = replace(H200, launch_seconds=0.0)
    fits, spills = 64 * 1024, 128 * 1024
    small, large = (mass_seconds(no_launch, QWEN25_3B, replace(sampling, layers=1), 1, n) for n in (fits, spills))
    keys = QWEN25_3B.key_bytes(1, spills, 1)
    assert large == pytest.approx(2 * keys / H200.memory_bytes_per_second)
    assert small < large / 2


@pytest.mark.parametrize("batch", BATCHES)
def test_fewer_layers_and_longer_strides_cost_less(batch):
    shares = [step_share(H200, QWEN25_3B, sampling, *batch) for sampling in SAMPLINGS]
    assert shares == sorted(shares, reverse=True)


def test_ranking_by_counting_grows_with_the_square():
    no_launch = replace(H200, launch_seconds=0.0)
    assert rank_seconds(no_launch, 2000, 2) == pytest.approx(8 * rank_seconds(no_launch, 1000, 1))


def test_a_faster_memory_makes_both_faster():
    fast = replace(H200, memory_bytes_per_second=2 * H200.memory_bytes_per_second)
    batch = (32, 32768)
    assert QWEN25_3B.step_seconds(fast, *batch) == pytest.approx(QWEN25_3B.step_seconds(H200, *batch) / 2)
    assert mass_seconds(fast, QWEN25_3B, SAMPLINGS[0], *batch) < mass_seconds(H200, QWEN25_3B, SAMPLINGS[0], *batch)
