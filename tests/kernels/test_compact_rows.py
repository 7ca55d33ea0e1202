"""Compaction into fixed buffers: equal to the reference, at one address, and without a read by the host."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from memdecay_kernels import CompactRowBuffers, compact_block_table, compact_rows_into

HOST_READS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "_to_copy")


@st.composite
def steps(draw):
    """Steps of one engine: rows with holes, stale entries behind a row's end, padding rows of length 0."""
    page = draw(st.sampled_from([16, 32]))
    columns = draw(st.integers(1, 12))
    batches = []
    for _ in range(draw(st.integers(1, 3))):
        rows, lengths = [], []
        for _ in range(draw(st.integers(1, 5))):
            length = draw(st.integers(0, columns * page))
            used = -(-length // page)
            holes = draw(st.sets(st.integers(0, max(used - 2, 0))))
            row = [0 if hole in holes and hole < used - 1 else draw(st.integers(1, 99)) for hole in range(used)]
            rows.append(row + [draw(st.integers(0, 99)) for _ in range(columns - used)])
            lengths.append(length)
        batches.append((torch.tensor(rows, dtype=torch.int32), torch.tensor(lengths, dtype=torch.int32)))
    return page, columns, batches


@settings(max_examples=200, deadline=None)
@given(steps())
def test_equals_the_reference_at_the_same_addresses_step_after_step(case):
    page, columns, batches = case
    buffers = CompactRowBuffers(8, columns + 2, page, "cpu")
    addresses = buffers.table.data_ptr(), buffers.seq_lens.data_ptr()
    for table, seq_lens in batches:
        before = table.clone(), seq_lens.clone()
        expected = compact_block_table(table, seq_lens, page)
        compacted, kept_tokens = buffers.compact(table, seq_lens)
        assert torch.equal(table, before[0])
        assert torch.equal(seq_lens, before[1])
        assert torch.equal(compacted[:, :columns], expected.block_table)
        assert not compacted[:, columns:].any()
        assert torch.equal(kept_tokens, expected.kept_tokens)
        assert kept_tokens.dtype is torch.int32
        assert (compacted.data_ptr(), kept_tokens.data_ptr()) == addresses
        assert compacted.stride() == buffers.table.stride()


def test_a_dummy_row_of_null_pages_keeps_its_length():
    table = torch.tensor([[0, 0, 0], [7, 0, 9], [5, 5, 5]], dtype=torch.int32)
    buffers = CompactRowBuffers(3, 3, 16, "cpu")
    compacted, kept_tokens = buffers.compact(table, torch.tensor([40, 48, 0], dtype=torch.int32))
    assert compacted.tolist() == [[0, 0, 0], [7, 9, 0], [0, 0, 0]]
    assert kept_tokens.tolist() == [40, 32, 0]


def test_rows_of_an_earlier_larger_step_are_left_alone():
    """A graph captured for more rows is replayed only after those rows are written again."""
    buffers = CompactRowBuffers(3, 2, 16, "cpu")
    buffers.compact(torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=torch.int32), torch.tensor([32, 32, 32]).int())
    buffers.compact(torch.tensor([[0, 8]], dtype=torch.int32), torch.tensor([32]).int())
    assert buffers.table.tolist() == [[8, 0], [3, 4], [5, 6]]
    assert buffers.seq_lens.tolist() == [16, 32, 32]


@pytest.mark.parametrize(("rows", "pages"), [(3, 2), (2, 3)])
def test_rows_that_do_not_fit_are_refused(rows, pages):
    buffers = CompactRowBuffers(2, 2, 16, "cpu")
    with pytest.raises(ValueError, match=f"{rows} rows of {pages} pages do not fit"):
        buffers.compact(torch.ones(rows, pages, dtype=torch.int32), torch.ones(rows, dtype=torch.int32))


def compact_with_a_host_read(block_table, seq_lens, page_size_tokens, out_table, out_seq_lens):
    """A planted fault: the obvious shortcut of working on the longest row only."""
    pages = -(-int(seq_lens.max()) // page_size_tokens)
    compact_rows_into(block_table.narrow(1, 0, pages), seq_lens, page_size_tokens, out_table, out_seq_lens)


def fake_step(compact, device):
    with FakeTensorMode():
        table = torch.ones(4, 6, dtype=torch.int32, device=device)
        seq_lens = torch.ones(4, dtype=torch.int32, device=device)
        out_table = torch.zeros(8, 6, dtype=torch.int32, device=device)
        out_seq_lens = torch.zeros(8, dtype=torch.int32, device=device)
        compact(table, seq_lens, 16, out_table, out_seq_lens)
        return out_table.device.type


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fake_tensors_have_no_values_to_read_and_none_is_read(device, monkeypatch):
    """Fake tensors of a CUDA device need no GPU; an operand left on the CPU would be refused here."""
    monkeypatch.setenv("MEMDECAY_KERNELS", "reference")  # a kernel would ask the driver for a device
    assert fake_step(compact_rows_into, device) == device


def test_the_fake_tensors_notice_a_host_read():
    with pytest.raises(DataDependentOutputException):
        fake_step(compact_with_a_host_read, "cpu")


class RecordOperators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def operators(compact):
    table, seq_lens = torch.tensor([[3, 0, 5]], dtype=torch.int32), torch.tensor([40], dtype=torch.int32)
    with RecordOperators() as recorded:
        compact(table, seq_lens, 16, torch.zeros(2, 3, dtype=torch.int32), torch.zeros(2, dtype=torch.int32))
    return set(recorded.names)


def test_no_operator_reads_back_or_has_a_shape_that_depends_on_data():
    assert not operators(compact_rows_into) & set(HOST_READS)
    assert "_local_scalar_dense" in operators(compact_with_a_host_read)
