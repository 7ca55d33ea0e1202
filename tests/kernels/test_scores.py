"""observe_tokens and score_pages: the definitions against plain Python, every implementation against them."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memdecay_kernels import ObserveRule, ScoreTerms, TokenColumns, observe_tokens, score_pages
from memdecay_kernels.reference import scores as reference

PAGE = 16
hypothesis_with_fixture = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def columns_of(pages: int, seed: int, page: int = PAGE) -> TokenColumns[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    n = pages * page

    def some(scale: float) -> torch.Tensor:
        values = torch.rand(n, generator=generator) * scale
        return torch.where(torch.rand(n, generator=generator) < 0.3, values[0], values)  # ties

    return TokenColumns(
        region=torch.randint(0, 7, (n,), generator=generator, dtype=torch.int8),
        flags=torch.randint(0, 4, (n,), generator=generator, dtype=torch.int8),
        refreshed_at_ticks=torch.randint(0, 900, (n,), generator=generator),
        ewma_mass=some(0.01),
        accumulated_relative=some(50.0),
        salience_sum=some(9.0) - 4.0,
        salience_weight=torch.randint(0, 5, (n,), generator=generator).float(),
        last_query_mass=some(0.01),
        key_norm=some(20.0),
    )


def copied(columns: TokenColumns[torch.Tensor]) -> TokenColumns[torch.Tensor]:
    return TokenColumns(*(column.clone() for column in columns))


def assert_same(got: TokenColumns[torch.Tensor], expected: TokenColumns[torch.Tensor]) -> None:
    for name, column in got._asdict().items():
        torch.testing.assert_close(column, getattr(expected, name), rtol=1e-5, atol=1e-6, msg=name)


rules = st.builds(
    ObserveRule,
    ewma_factor=st.floats(0.01, 1.0),
    salience_neighbours=st.integers(1, 40),
    salience_floor_relative=st.sampled_from([1e-3, 0.5]),
    salience_min_age_tokens=st.integers(0, 40),
    refresh=st.sampled_from(["raw_mass", "relative_mass", "never"]),
    refresh_threshold=st.sampled_from([0.01, 1.5]),
)


@hypothesis_with_fixture
@given(rules, st.integers(1, 12), st.data())
def test_observing_agrees_with_the_definition(implementation, rule, pages, data):
    columns = columns_of(pages, data.draw(st.integers(0, 99)))
    kept = sorted(data.draw(st.sets(st.integers(0, pages - 1), min_size=1)))
    last = data.draw(st.integers(1, PAGE))  # tokens of the last page
    index = torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in kept])[: len(kept) * PAGE - PAGE + last]
    generator = torch.Generator().manual_seed(pages)
    mass = torch.rand(index.numel(), generator=generator).pow(6).softmax(0)
    mass[torch.rand(mass.shape, generator=generator) < 0.2] = 0.0
    newest = data.draw(st.sampled_from([None, mass.flip(0)]))
    queries, ticks = data.draw(st.integers(1, 300)), data.draw(st.integers(0, 1000))
    expected = copied(columns)
    reference.observe_tokens(expected, index, mass, newest, rule, queries, ticks)
    untouched = torch.ones(pages * PAGE, dtype=torch.bool)
    untouched[index] = False
    before = copied(columns)
    observe_tokens(columns, index, mass, rule, newest_mass=newest, represented_queries=queries, clock_ticks=ticks)
    assert_same(columns, expected)
    for was, now in zip(before, columns, strict=True):
        assert torch.equal(was[untouched], now[untouched])


def test_a_batch_of_queries_counts_as_so_many_single_ones(implementation):
    rule = ObserveRule(0.1, 4, 1e-3, 8, "never")
    batch, singly = columns_of(4, 1), columns_of(4, 1)
    index, mass = torch.arange(60), torch.rand(60).softmax(0)
    observe_tokens(batch, index, mass, rule, represented_queries=5)
    for _ in range(5):
        observe_tokens(singly, index, mass, rule)
    assert_same(batch, singly)


def test_indices_beyond_the_columns_are_refused_and_nothing_changes():
    columns = columns_of(2, 0)
    before = copied(columns)
    with pytest.raises(ValueError, match="indices below 32"):
        observe_tokens(columns, torch.tensor([0, 32]), torch.tensor([0.5, 0.5]), ObserveRule(0.1, 4, 1e-3, 0, "never"))
    with pytest.raises(ValueError, match="mass is"):
        observe_tokens(columns, torch.tensor([0, 1]), torch.tensor([0.5]), ObserveRule(0.1, 4, 1e-3, 0, "never"))
    assert_same(columns, before)


def terms_of(**changes) -> ScoreTerms[torch.Tensor]:
    half_life = torch.tensor([float("inf"), 300.0, 200.0, 50.0, 60.0, 80.0, 10.0])
    plain = ScoreTerms(
        base_priority=torch.tensor([2.0, 1.5, 1.2, 0.7, 0.8, 0.9, 0.3]),
        decay_rate_per_tick=math.log(2) / half_life,
        half_life_ticks=half_life,
    )
    return dataclasses.replace(plain, **changes)


terms = st.builds(
    terms_of,
    decay_form=st.sampled_from(["exponential", "power_law"]),
    superseded_factor=st.sampled_from([1.0, 0.1, 0.0]),
    attention_column=st.sampled_from(["ewma_mass", "accumulated_relative", "last_query_mass", "key_norm"]),
    attention_weight=st.floats(-3, 3),
    attention_form=st.sampled_from(["magnitude", "rank"]),
    salience_weight=st.floats(0, 3),
    salience_form=st.sampled_from(["magnitude", "rank"]),
)


@hypothesis_with_fixture
@given(terms, st.sampled_from([16, 32, 24, 8]), st.integers(1, 20), st.data())
def test_scoring_agrees_with_the_definition(implementation, terms, page, capacity, data):
    columns = columns_of(capacity, data.draw(st.integers(0, 99)), page)
    pages = torch.tensor(sorted(data.draw(st.sets(st.integers(0, capacity - 1), min_size=1))))
    processed = data.draw(st.integers(1, capacity * page))
    full = (pages + 1) * page <= processed
    evictable = full & (torch.rand(pages.shape, generator=torch.Generator().manual_seed(capacity)) < 0.7)
    now = data.draw(st.integers(0, 2000))
    expected = torch.empty(3, pages.numel())
    reference.score_pages(columns, pages, evictable, terms, page, processed, now, expected)
    before = copied(columns)
    parts = score_pages(columns, pages, evictable, terms, page, processed, now)
    torch.testing.assert_close(parts, expected, rtol=1e-5, atol=1e-6)
    assert_same(columns, before)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 500), st.floats(0, 1, width=32)), min_size=16, max_size=64),
       st.floats(0, 5))  # fmt: skip
def test_the_definition_is_the_published_formula(tokens, alpha):
    tokens = tokens[: len(tokens) // PAGE * PAGE]
    pages = len(tokens) // PAGE
    columns = columns_of(pages, 0)._replace(
        region=torch.tensor([region for region, _, _ in tokens], dtype=torch.int8),
        refreshed_at_ticks=torch.tensor([1000 - age for _, age, _ in tokens]),
        ewma_mass=torch.tensor([mass for _, _, mass in tokens]),
    )
    terms = terms_of(attention_weight=alpha)
    out = torch.empty(3, pages)
    everything = torch.ones(pages, dtype=torch.bool)
    reference.score_pages(columns, torch.arange(pages), everything, terms, PAGE, len(tokens), 1000, out)
    b, rate = terms.base_priority.tolist(), terms.decay_rate_per_tick.tolist()
    expected = [
        sum(b[r] * math.exp(-rate[r] * age) + alpha * a for r, age, a in tokens[p : p + PAGE]) / PAGE
        for p in range(0, len(tokens), PAGE)
    ]
    assert out.sum(0).tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


@given(st.lists(st.sampled_from([-1.0, -0.0, 0.0, 0.5, 2.0, 1e-30]), max_size=40))
def test_ranks_are_mean_ranks_among_equals(values):
    ranks = reference.unit_ranks(torch.tensor(values)).tolist()
    for value, rank in zip(values, ranks, strict=True):
        below, equal = sum(v < value for v in values), sum(v == value for v in values)
        expected = 0.5 if len(values) == 1 else (below + (equal - 1) / 2) / (len(values) - 1)
        assert rank == pytest.approx(expected, abs=1e-6)


def test_pages_that_the_columns_do_not_have_are_refused():
    columns, flags = columns_of(2, 0), torch.ones(2, dtype=torch.bool)
    with pytest.raises(ValueError, match="indices below 2"):
        score_pages(columns, torch.tensor([0, 2]), flags, terms_of(), PAGE, 32, 0)
    with pytest.raises(ValueError, match="evictable is"):
        score_pages(columns, torch.tensor([0]), flags, terms_of(), PAGE, 32, 0)
