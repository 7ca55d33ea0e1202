"""The FlashAttention builder and implementation on CPU tensors: rows in, rows out, what is observed.

FlashAttention itself needs a GPU: nothing here runs it. The stock builder runs, for it only arranges tensors.
"""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import MagicMock, patch

import pytest
import torch
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends import flash_attn
from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.kv_cache_interface import FullAttentionSpec

from memdecay_adapters.engine.flash_backend import (
    DeviceStepObserver,
    MemDecayFlashBackend,
    MemDecayFlashImpl,
    MemDecayFlashMetadata,
    MemDecayFlashMetadataBuilder,
    add_mass,
    register_flash_backend,
)
from memdecay_adapters.engine.observer import ObservedRows
from memdecay_adapters.engine.step_messages import StepDirections
from memdecay_agents.errors import IntegrityError, UnsupportedError
from memdecay_kernels import MassPlan, compact_block_table
from tests.kernels.test_attention_mass import direct_mass
from tests.kernels.test_compact_rows import HOST_READS, RecordOperators

PAGE, PAGES = 16, 8
TABLE = [[3, 0, 5, 0, 9, 77, 77, 77], [1, 2, 66, 66, 66, 66, 66, 66], [0, 0, 0, 0, 0, 0, 0, 0]]
LENGTHS = [70, 20, 0]  # the last one is a padding row of a CUDA graph
COMPACTED = [[3, 5, 9, 0, 0, 0, 0, 0], [1, 2, 0, 0, 0, 0, 0, 0], [0] * 8]


def builder(*, configured=True, full_graphs=False, observer=None):
    config = MagicMock()
    config.additional_config = {"memdecay": {}} if configured else {}
    config.scheduler_config.max_num_seqs = 3
    config.compilation_config.cudagraph_mode.has_full_cudagraphs.return_value = full_graphs
    config.compilation_config.max_cudagraph_capture_size = 4 if full_graphs else None
    config.model_config.rswa_window = None
    config.model_config.is_mm_prefix_lm = False
    config.kernel_config.enable_jit_warmup = False
    spec = FullAttentionSpec(block_size=PAGE, num_kv_heads=2, head_size=64, dtype=torch.bfloat16)
    with (
        patch.object(flash_attn, "get_num_attention_heads_from_layers", lambda *_: 4),
        patch.object(flash_attn, "get_dcp_world_size_and_rank", lambda *_: (1, 0)),
    ):
        made = MemDecayFlashMetadataBuilder(spec, ["l0"], config, torch.device("cpu"), block_table_width=PAGES)
    made.observer, made.observed_layers = observer, frozenset({"l0"})
    return made


def step(table=TABLE, lengths=LENGTHS, queries=(2, 1, 0)):
    starts = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        num_reqs=len(lengths),
        num_actual_tokens=sum(queries),
        max_query_len=max(queries),
        max_seq_len=max(lengths),
        block_table_tensor=torch.tensor(table, dtype=torch.int32),
        slot_mapping=torch.arange(sum(queries)),
    )


def observing(expected_rows=None, **observe):
    observer = DeviceStepObserver()
    observer.start_step(StepDirections(observe=observe, expected_rows=expected_rows), lambda: ["a", "b"])
    return observer


def test_attention_sees_retained_pages_and_the_runners_tensors_stay_as_they_are():
    common = step()
    metadata = builder().build(0, common)
    assert metadata.block_table.tolist() == COMPACTED
    assert metadata.seq_lens.tolist() == [38, 20, 0]
    assert metadata.slot_mapping is common.slot_mapping
    assert metadata.max_seq_len == 70
    assert common.block_table_tensor.tolist() == TABLE
    assert common.seq_lens.tolist() == LENGTHS


def test_a_step_that_observes_nothing_reads_nothing_back():
    made, common = builder(observer=observing()), step()
    with RecordOperators() as recorded:
        made.build(0, common)
    assert "cumsum" in recorded.names
    assert not set(recorded.names) & set(HOST_READS)


def test_what_a_cuda_graph_captured_is_what_later_steps_write():
    made = builder(full_graphs=True)
    dummy = step([[0] * PAGES] * 3, [128, 128, 128], (1, 1, 1))
    captured = made.build_for_cudagraph_capture(dummy)
    assert captured.seq_lens.tolist() == [128, 128, 128]
    later = made.build(0, step())
    assert captured.block_table.tolist() == COMPACTED == later.block_table.tolist()
    assert captured.seq_lens.tolist() == [38, 20, 0]
    assert captured.block_table.data_ptr() == later.block_table.data_ptr()
    assert captured.seq_lens.data_ptr() == later.seq_lens.data_ptr()


def test_scheduler_metadata_are_computed_from_the_retained_lengths():
    made = builder()
    with patch.object(MemDecayFlashMetadataBuilder, "_get_scheduler_metadata", return_value=None) as asked:
        made.build(0, step())
    assert asked.call_args.kwargs["seqlens"].tolist() == [38, 20, 0]


def test_an_engine_without_memdecay_settings_gets_the_stock_builder():
    common = step()
    made = builder(configured=False)
    metadata = made.build(0, common)
    assert metadata.block_table is common.block_table_tensor
    assert metadata.seq_lens is common.seq_lens
    assert made.update_block_table(metadata, torch.zeros(1, 1), torch.zeros(1)).block_table.numel() == 1


def test_what_would_go_past_the_compaction_is_refused():
    made = builder()
    metadata = made.build(0, step())
    with pytest.raises(UnsupportedError, match="uncompacted rows"):
        made.update_block_table(metadata, torch.zeros(1, 1), torch.zeros(1))
    with pytest.raises(UnsupportedError, match="cascade"):
        made.build(16, step())
    assert not made.supports_update_block_table
    assert not made.supports_draft_decode_metadata_update
    with pytest.raises(ValueError, match="do not fit"):
        made.build(0, step([[1] * (PAGES + 1)], [16], (1,)))


# ---- what is observed


def test_rows_are_observed_with_their_logical_indices():
    observer = observing(a=4, b=1)
    metadata = builder(observer=observer).build(0, step())
    assert isinstance(metadata, MemDecayFlashMetadata)
    assert metadata.block_table.tolist() == COMPACTED
    observed = metadata.observed_rows
    assert observed.request_ids == ("a", "b")
    assert observed.token_index[0].tolist() == [*range(16), *range(32, 48), *range(64, 70)]
    table, lengths, ends, windows = (row.tolist() for row in observed.plan.rows)
    assert [table[0][:3], table[1][:2]] == [[3, 5, 9], [1, 2]]
    assert (lengths, ends, windows) == ([38, observed.token_index[1].numel()], [2, 3], [2, 1])


def test_a_step_that_may_be_a_graph_replay_is_not_observed():
    observer = observing(a=4)
    made = builder(full_graphs=True, observer=observer)
    assert not isinstance(made.build(0, step()), MemDecayFlashMetadata)
    assert isinstance(made.build(0, step(queries=(4, 1, 0))), MemDecayFlashMetadata)


def test_a_captured_step_is_not_observed_and_later_ones_are():
    made = builder(observer=observing(a=4))
    assert not isinstance(made.build_for_cudagraph_capture(step()), MemDecayFlashMetadata)
    assert isinstance(made.build(0, step()), MemDecayFlashMetadata)


@pytest.mark.parametrize("full_graphs", [False, True])
def test_a_stale_row_is_caught_when_integrity_is_checked_with_or_without_graphs(full_graphs):
    rows = {"a": TABLE[0][:5], "b": [1, 2]}
    builder(observer=observing(rows), full_graphs=full_graphs).build(0, step())
    rows["a"] = [3, 4, 5, 0, 9]
    with pytest.raises(IntegrityError, match=r"request 'a', page 1.*the row is stale"):
        builder(observer=observing(rows), full_graphs=full_graphs).build(0, step())


# ---- attention mass


def observed_row():
    table = compact_block_table(torch.tensor(TABLE[:1], dtype=torch.int32), torch.tensor([70]).int(), PAGE)
    ends, windows = torch.tensor([3]).int(), torch.tensor([2]).int()
    plan = MassPlan(table.block_table, table.kept_tokens, ends, windows, page_size_tokens=PAGE, query_tokens=5)
    return ObservedRows(("a",), (torch.arange(38),), plan)


@pytest.mark.parametrize("heads_outermost", [True, False])
def test_mass_is_the_softmax_over_retained_keys_in_either_cache_layout(heads_outermost):
    torch.manual_seed(0)
    cache = torch.randn(10, 2, PAGE, 2 * 8)
    if not heads_outermost:
        cache = cache.transpose(1, 2).contiguous().transpose(1, 2)
    query = torch.randn(5, 4, 8)
    row = observed_row()
    add_mass(row, query, cache, 0.3)
    add_mass(row, query, cache, 0.3)
    keys = cache[[3, 5, 9]][..., :8].permute(0, 2, 1, 3).reshape(-1, 2, 8)[:38]
    assert row.plan.layers == 2
    torch.testing.assert_close(row.plan.mass[0] / 2, direct_mass(query[1:3], keys, 0.3), rtol=1e-4, atol=1e-6)


def test_only_observed_layers_add_mass_and_attention_is_the_stock_one(monkeypatch):
    monkeypatch.setattr(FlashAttentionImpl, "forward", lambda *args, **kwargs: "stock")
    impl = object.__new__(MemDecayFlashImpl)
    impl.scale = 0.3
    observer = observing(a=2)
    metadata = builder(observer=observer).build(0, step())
    query, cache = torch.randn(3, 4, 8), torch.randn(10, 2, PAGE, 16)

    def forward(name, attn_metadata):
        layer = SimpleNamespace(layer_name=name)
        return impl.forward(layer, query, query, query, cache, attn_metadata, query)

    assert forward("l1", metadata) == "stock"
    assert observer._rows[0].plan.layers == 0
    assert forward("l0", metadata) == "stock"
    assert forward("l0", None) == "stock"
    (report,) = observer.report().by_request.values()
    assert report.mass.sum().item() == pytest.approx(1, abs=1e-5)
    assert report.mass.device.type == "cpu"
    assert observer.report() is None


def test_a_step_that_was_planned_and_not_measured_reports_nothing():
    observer = observing(a=2)
    builder(observer=observer).build(0, step())
    assert observer.report() is None


# ---- the backend


def test_the_backend_keeps_its_stock_name_and_takes_its_stock_pages():
    assert MemDecayFlashBackend.get_name() == "FLASH_ATTN"
    assert MemDecayFlashBackend.get_builder_cls() is MemDecayFlashMetadataBuilder
    assert MemDecayFlashBackend.get_impl_cls() is MemDecayFlashImpl
    (multiple,) = MemDecayFlashBackend.get_supported_kernel_block_sizes()
    assert multiple.base == 16


def test_registering_overrides_flash_attention_and_clearing_gives_it_back():
    from memdecay_adapters.engine.platform_parts import clear_backends

    try:
        register_flash_backend()
        register_flash_backend()
        assert AttentionBackendEnum.FLASH_ATTN.get_class() is MemDecayFlashBackend
    finally:
        clear_backends()
    assert AttentionBackendEnum.FLASH_ATTN.get_class() is flash_attn.FlashAttentionBackend
