"""Block-table compaction, selection and copies, in every implementation, against plain Python."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memdecay_kernels import compact_block_table, copy_pages, select_pages

hypothesis_with_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


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


@hypothesis_with_fixture
@given(tables(), st.booleans())
def test_compaction_keeps_order_and_counts_holes(implementation, case, wider):
    page, rows, lengths = case
    table = torch.tensor(rows, dtype=torch.int32)
    if wider:  # an engine's table is a slice of a larger one
        table = torch.cat([table, torch.full_like(table, 7)], dim=1)[:, : table.shape[1]]
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


@hypothesis_with_fixture
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=40), st.integers(0, 45))
def test_select_takes_the_lowest_evictable_with_ties_to_the_lower_index(implementation, pages, count):
    scores = torch.tensor([float(score) for score, _ in pages])
    evictable = torch.tensor([flag for _, flag in pages])
    ranked = sorted((score, page) for page, (score, flag) in enumerate(pages) if flag)
    chosen = [page for _, page in ranked[:count]]
    assert select_pages(scores, evictable, count).tolist() == chosen + [-1] * (count - len(chosen))


def test_selection_refuses_arrays_of_different_lengths():
    with pytest.raises(ValueError, match="flags"):
        select_pages(torch.zeros(3), torch.ones(2, dtype=torch.bool), 1)
    with pytest.raises(ValueError, match="-1 of"):
        select_pages(torch.zeros(3), torch.ones(3, dtype=torch.bool), -1)


@hypothesis_with_fixture
@given(st.integers(1, 8), st.sampled_from([(3, 32), (1,), (2, 5, 7)]), st.data())
def test_copied_pages_are_bit_equal_and_others_untouched(implementation, count, shape, data):
    dtype = data.draw(st.sampled_from([torch.bfloat16, torch.float32, torch.float16]))
    generator = torch.Generator().manual_seed(count)
    device, host = torch.randn(8, *shape, generator=generator).to(dtype), torch.randn(11, *shape).to(dtype)
    device.view(-1)[0] = float("nan")  # bits, not numbers
    before = host.clone()
    sources = data.draw(st.permutations(range(8)))[:count]
    targets = data.draw(st.permutations(range(11)))[:count]
    copy_pages(device, torch.tensor(sources), host, torch.tensor(targets))
    bits = {torch.float32: torch.int32}.get(dtype, torch.int16)
    before[targets] = device[sources]
    assert torch.equal(host.view(bits), before.view(bits))


def test_a_layers_pages_can_be_copied_out_of_a_pool_in_any_strides(implementation):
    pool = torch.randn(6, 2, 3, 4).transpose(1, 2)  # pages not contiguous
    host = torch.zeros(4, 3, 2, 4)
    copy_pages(pool, torch.tensor([5, 0]), host, torch.tensor([1, 2]))
    assert torch.equal(host[1:3], pool[[5, 0]])


@pytest.mark.parametrize(
    ("target", "pages"),
    [
        (torch.zeros(4, 2, 32), [0]),
        (torch.zeros(4, 3, 32).half(), [0]),
        (torch.zeros(4, 3, 32), [0, 1]),
        (torch.zeros(4, 3, 32), [4]),
        (torch.zeros(4, 3, 32), [-1]),
    ],
)
def test_copies_that_do_not_fit_are_refused(target, pages):
    with pytest.raises(ValueError, match=r"fit|pages for|are not among"):
        copy_pages(torch.zeros(2, 3, 32), torch.tensor([1]), target, torch.tensor(pages))
