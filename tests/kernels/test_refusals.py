"""Bad input is refused by name before any implementation sees it: a library trusts the addresses it is given."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from memdecay_kernels import (
    KeyLayout,
    MassPlan,
    attention_mass,
    compact_block_table,
    copy_pages,
    observe_tokens,
    score_pages,
    select_pages,
)
from memdecay_kernels.terms import ObserveRule
from tests.kernels.test_scores import columns_of, terms_of

LAYOUT = KeyLayout.row_major(16, 4)
RULE = ObserveRule(0.1, 4, 1e-3, 0, "never")


def int32(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def mass(**changes):
    case = {
        "query": torch.randn(2, 4, 4),
        "key_cache": torch.randn(3, 2, 64),
        "layout": LAYOUT,
        "block_table": int32(0, 2)[:, None],
        "context_lens": int32(5, 16),
        "scale": 1.0,
        **changes,
    }
    return attention_mass(**case)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_table": torch.tensor([[0], [2]])}, "block_table is int64, and has to be int32"),
        ({"block_table": int32(0, 3)[:, None]}, "row 1: page 3 is not among 3 pages"),
        ({"block_table": int32(-1, 2)[:, None]}, "row 0: page -1 is not among"),
        ({"context_lens": int32(5)}, r"context_lens is \[1\], and has to be \[2\]"),
        ({"windows": int32(1), "query_ends": int32(1, 2)}, r"windows is \[1\]"),
        ({"out": torch.zeros(1, 16)}, r"out is \[1, 16\], and has to be \[2, any\]"),
        ({"out": torch.zeros(2, 16, dtype=torch.float64)}, "out is float64"),
        ({"query": torch.randn(2, 4)}, r"query is \[2, 4\]"),
        ({"query": torch.randn(2, 4, 4).double()}, "query is float64"),
        ({"key_cache": torch.randn(3, 2, 64).int()}, "key_cache is int32"),
        ({"layout": None}, r"key_cache is \[3, 2, 64\], and has to be \[any, any, any, any\]"),
        ({"key_cache": torch.randn(3, 0, 64)}, "do not fit 0 key heads"),
        ({"layout": KeyLayout(torch.arange(64).view(16, 4) + 1, "beyond")}, "do not fit layout 'beyond'"),
    ],
)
def test_attention_mass(changes, message):
    mass()
    with pytest.raises(ValueError, match=message):
        mass(**changes)


def test_a_page_behind_a_context_may_be_anything():
    table = torch.tensor([[0, 99], [2, -1]], dtype=torch.int32)
    query, keys = torch.randn(2, 4, 4), torch.randn(3, 2, 64)
    assert torch.equal(mass(block_table=table, query=query, key_cache=keys), mass(query=query, key_cache=keys))


def test_a_plan_checks_pages_once_it_knows_the_pool():
    one = int32(1)
    plan = MassPlan(int32(7)[None], one, one, one, page_size_tokens=16, query_tokens=1)
    with pytest.raises(ValueError, match="page 7 is not among 3 pages"):
        plan.add_layer(torch.randn(1, 4, 4), torch.randn(3, 2, 64), LAYOUT, 1.0)
    with pytest.raises(ValueError, match="windows is"):
        MassPlan(int32(7)[None], one, one, int32(1, 1), page_size_tokens=16, query_tokens=1)


@pytest.mark.parametrize("offsets", [torch.arange(64).view(16, 4) - 1, torch.zeros(64, dtype=torch.int64)])
def test_layouts(offsets):
    with pytest.raises(ValueError, match="offsets have to be int64"):
        KeyLayout(offsets, "wrong")


@pytest.mark.parametrize(
    ("index", "masses", "message"),
    [
        (torch.tensor([0, 1]).int(), torch.ones(2), "token_index is int32"),
        (torch.tensor([0, 1]), torch.ones(2).double(), "mass is float64"),
        (torch.tensor([0, 1]), torch.ones(3), r"mass is \[3\]"),
        (torch.tensor([-1, 1]), torch.ones(2), "not strictly increasing"),
        (torch.tensor([9, 1, 2]), torch.ones(3), "not strictly increasing"),
        (torch.tensor([1, 1]), torch.ones(2), "not strictly increasing"),
        (torch.tensor([31, 32]), torch.ones(2), "indices below 32"),
    ],
)
def test_observe_tokens(index, masses, message):
    columns = columns_of(2, 0)
    before = [column.clone() for column in columns]
    with pytest.raises(ValueError, match=message):
        observe_tokens(columns, index, masses, RULE)
    with pytest.raises(ValueError, match="represented queries"):
        observe_tokens(columns, torch.tensor([0]), torch.ones(1), RULE, represented_queries=0)
    assert all(torch.equal(was, now) for was, now in zip(before, columns, strict=True))


def test_columns_of_different_lengths():
    columns = columns_of(2, 0)._replace(ewma_mass=torch.zeros(16))
    with pytest.raises(ValueError, match=r"ewma_mass is \[16\], and has to be \[32\]"):
        observe_tokens(columns, torch.tensor([0]), torch.ones(1), RULE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pages": torch.tensor([0, 1]).int()}, "pages is int32"),
        ({"pages": torch.tensor([1, 0])}, "pages: 1 to 0 are not strictly increasing"),
        ({"evictable": torch.ones(2)}, "evictable is float32"),
        ({"out": torch.zeros(1, 1)}, r"out is \[1, 1\], and has to be \[3, 2\]"),
        ({"page_size_tokens": 24}, "no whole pages of 24"),
        ({"terms": terms_of(decay_form="linear")}, "decay_form 'linear'"),
        ({"terms": terms_of(attention_form="log")}, "attention_form 'log'"),
        ({"terms": terms_of(attention_column="region2")}, "is no column"),
        ({"terms": terms_of(base_priority=torch.ones(7).double())}, "base_priority is float64"),
        (
            {"terms": dataclasses.replace(terms_of(), base_priority=torch.ones(2), decay_rate_per_tick=torch.ones(2),
                                          half_life_ticks=torch.ones(2))},
            "are not among 2",
        ),
    ],
)  # fmt: skip
def test_score_pages(changes, message):
    case = {
        "columns": columns_of(2, 0),
        "pages": torch.tensor([0, 1]),
        "evictable": torch.ones(2, dtype=torch.bool),
        "terms": terms_of(),
        "page_size_tokens": 16,
        "processed_tokens": 32,
        "clock_ticks": 0,
    }
    score_pages(**case)
    with pytest.raises(ValueError, match=message):
        score_pages(**{**case, **changes})


@pytest.mark.parametrize(
    ("scores", "flags", "out", "message"),
    [
        (torch.zeros(3).double(), torch.ones(3, dtype=torch.bool), None, "page_scores is float64"),
        (torch.zeros(3), torch.ones(3, dtype=torch.int64), None, "evictable is int64"),
        (torch.zeros(3), torch.ones(3, dtype=torch.bool), torch.zeros(2).int(), "out is int32"),
        (torch.zeros(3), torch.ones(3, dtype=torch.bool), torch.zeros(4, dtype=torch.int64)[::2], "contiguous"),
    ],
)
def test_select_pages(scores, flags, out, message):
    with pytest.raises(ValueError, match=message):
        select_pages(scores, flags, 2, out=out)


@pytest.mark.parametrize(
    ("lengths", "page", "message"),
    [
        (int32(-5), 16, "a length of -5"),
        (int32(5), 0, "pages of 0 tokens"),
        (int32(5, 5), 16, r"seq_lens is \[2\]"),
        (torch.tensor([5]), 16, "seq_lens is int64"),
    ],
)
def test_compact_block_table(lengths, page, message):
    with pytest.raises(ValueError, match=message):
        compact_block_table(int32(3, 0)[None], lengths, page)


def test_copy_pages():
    with pytest.raises(ValueError, match="source_pages is int32"):
        copy_pages(torch.zeros(2, 4), int32(0), torch.zeros(2, 4), torch.tensor([0]))


def test_copying_inside_one_cache_needs_pages_apart():
    pool = torch.arange(8.0).view(4, 2)
    with pytest.raises(ValueError, match="both read and written"):
        copy_pages(pool, torch.tensor([0, 1]), pool, torch.tensor([1, 2]))
    copy_pages(pool, torch.tensor([0, 1]), pool, torch.tensor([2, 3]))
    assert torch.equal(pool[2:], pool[:2])
