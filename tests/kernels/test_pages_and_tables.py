"""Block-table compaction, page scores, selection and copies against plain Python."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memdecay_kernels import compact_block_table, copy_pages, score_pages, select_pages


@st.composite
def tables(draw):
    page = draw(st.sampled_from([16, 32]))
    rows, lengths = [], []
    columns = draw(st.integers(1, 12))
    for _ in range(draw(st.integers(1, 5))):
        length = draw(st.integers(1, columns * page))
        used = -(-length // page)
        row = [draw(st.integers(1, 99)) for _ in range(used)]
        for hole in draw(st.sets(st.integers(0, max(used - 2, 0)))):
            if hole < used - 1:
                row[hole] = 0
        # stale entries behind the row's end must not count
        rows.append(row + [draw(st.integers(0, 99)) for _ in range(columns - used)])
        lengths.append(length)
    return page, rows, lengths


@settings(max_examples=150)
@given(tables())
def test_compaction_keeps_order_and_counts_holes(case):
    page, rows, lengths = case
    table = torch.tensor(rows, dtype=torch.int32)
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    before = table.clone(), seq_lens.clone()
    result = compact_block_table(table, seq_lens, page)
    assert torch.equal(table, before[0])
    assert torch.equal(seq_lens, before[1])
    for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        used = row[: -(-length // page)]
        kept = [block for block in used if block]
        assert result.block_table[index, : len(kept)].tolist() == kept
        assert not result.block_table[index, len(kept) :].any()
        assert result.kept_tokens[index] == length - page * used.count(0)
        assert torch.nonzero(result.kept_pages[index]).flatten().tolist() == [i for i, b in enumerate(used) if b]


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 0.5), st.integers(0, 500), st.floats(0, 1)),
                min_size=16, max_size=64), st.floats(0, 5))  # fmt: skip
def test_score_pages_is_the_published_formula(tokens, alpha):
    tokens = tokens[: len(tokens) // 16 * 16]
    columns = list(zip(*tokens, strict=True))
    scores = score_pages(
        torch.tensor(columns[0]), torch.tensor(columns[1]), torch.tensor(columns[2]), torch.tensor(columns[3]),
        alpha, 16,
    )  # fmt: skip
    expected = [
        sum(b * math.exp(-rate * age) + alpha * a for b, rate, age, a in tokens[p : p + 16]) / 16
        for p in range(0, len(tokens), 16)
    ]
    assert scores.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=40), st.integers(0, 45))
def test_select_takes_the_lowest_evictable_with_ties_to_the_lower_index(pages, count):
    scores = torch.tensor([float(score) for score, _ in pages])
    evictable = torch.tensor([flag for _, flag in pages])
    ranked = sorted((score, page) for page, (score, flag) in enumerate(pages) if flag)
    assert select_pages(scores, evictable, count).tolist() == [page for _, page in ranked[:count]]


def test_copied_pages_are_bit_equal_and_others_untouched():
    device = torch.randn(8, 3, 32).bfloat16()
    host = torch.zeros(4, 3, 32).bfloat16()
    copy_pages(device, torch.tensor([5, 2]), host, torch.tensor([3, 0]))
    assert torch.equal(host[3].view(torch.int16), device[5].view(torch.int16))
    assert torch.equal(host[0].view(torch.int16), device[2].view(torch.int16))
    assert not host[1:3].any()


@pytest.mark.parametrize(
    ("target", "pages"),
    [(torch.zeros(4, 2, 32), [0]), (torch.zeros(4, 3, 32).half(), [0]), (torch.zeros(4, 3, 32), [0, 1])],
)
def test_copies_that_do_not_fit_are_refused(target, pages):
    with pytest.raises(ValueError, match=r"fit|pages for"):
        copy_pages(torch.zeros(2, 3, 32), torch.tensor([1]), target, torch.tensor(pages))
