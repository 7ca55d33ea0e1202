"""What the GPU parts expect of vLLM 0.32, looked up in its classes and sources, on a machine without a GPU.

These say that a hook is still there and still called where it was read; not that the whole works on a GPU.
"""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
from vllm.v1.attention.backend import AttentionMetadataBuilder, CommonAttentionMetadata
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionImpl,
    FlashAttentionMetadata,
    FlashAttentionMetadataBuilder,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.worker.gpu import model_runner as v2
from vllm.v1.worker.gpu.attn_utils import build_attn_metadata
from vllm.v1.worker.gpu.block_table import BlockTables
from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor
from vllm.v1.worker.gpu_input_batch import InputBatch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner as V1ModelRunner
from vllm.v1.worker.gpu_worker import Worker
from vllm.v1.worker.utils import AttentionGroup

from memdecay_adapters.engine.flash_backend import MemDecayFlashImpl, MemDecayFlashMetadataBuilder
from memdecay_adapters.engine.gpu_worker import MemDecayGPUWorker
from memdecay_adapters.engine.worker_base import MemDecayWorkerMixin
from memdecay_adapters.engine.worker_rows import V1Rows
from memdecay_adapters.engine.worker_rows_v2 import V2Rows
from memdecay_agents.errors import UnsupportedError


def parameters(function):
    return list(inspect.signature(function).parameters)


def in_order(source, *texts):
    places = [source.find(text) for text in texts]
    return -1 not in places and places == sorted(places)


@pytest.mark.parametrize(
    ("ours", "theirs", "names"),
    [
        (MemDecayGPUWorker, Worker, ("get_kv_cache_spec", "initialize_from_config", "sample_tokens", "execute_model")),
        (MemDecayFlashMetadataBuilder, FlashAttentionMetadataBuilder, ("build", "update_block_table")),
        (MemDecayFlashMetadataBuilder, AttentionMetadataBuilder, ("build_for_cudagraph_capture",)),
    ],
)
def test_overridden_methods_take_what_vllm_passes(ours, theirs, names):
    for name in names:
        assert parameters(getattr(ours, name)) == parameters(getattr(theirs, name)), name


def test_the_implementation_passes_on_all_that_follows_the_output():
    theirs = parameters(FlashAttentionImpl.forward)
    assert parameters(MemDecayFlashImpl.forward)[:8] == theirs[:8]
    assert theirs[:8] == ["self", "layer", "query", "key", "value", "kv_cache", "attn_metadata", "output"]


def test_the_workers_hooks_come_before_vllms():
    assert MemDecayGPUWorker.__mro__.index(MemDecayWorkerMixin) < MemDecayGPUWorker.__mro__.index(Worker)
    assert not {"__init__", "execute_model"} & set(vars(MemDecayGPUWorker))


def test_fields_that_are_read_or_replaced_exist():
    fields = set(CommonAttentionMetadata.__dataclass_fields__)
    assert {"block_table_tensor", "seq_lens", "num_reqs", "num_actual_tokens", "query_start_loc_cpu"} <= fields
    assert {"block_table", "seq_lens", "scheduler_metadata"} <= set(FlashAttentionMetadata.__dataclass_fields__)
    fields = set(SchedulerOutput.__dataclass_fields__)
    assert {"scheduled_new_reqs", "finished_req_ids", "preempted_req_ids", "num_scheduled_tokens",
            "scheduled_spec_decode_tokens", "kv_connector_metadata"} <= fields  # fmt: skip
    made = inspect.getsource(FlashAttentionMetadataBuilder.__init__)
    for attribute in ("use_full_cuda_graph", "max_cudagraph_size", "block_size"):
        assert f"self.{attribute} =" in made


def test_the_stock_builder_computes_scheduler_metadata_from_the_common_metadata_it_is_given():
    source = inspect.getsource(FlashAttentionMetadataBuilder.build)
    assert in_order(source, "seq_lens = common_attn_metadata.seq_lens", "self._get_scheduler_metadata(", "seqlens=")
    assert in_order(source, "block_table_tensor = common_attn_metadata.block_table_tensor", "FlashAttentionMetadata(")


def test_vllm_gives_builders_the_table_width_when_they_ask():
    source = inspect.getsource(AttentionGroup.create_metadata_builders)
    assert in_order(source, "builder_cls.requires_block_table_width", 'builder_kwargs["block_table_width"]')


def test_vllm_updates_block_tables_only_where_a_builder_says_that_it_can():
    assert "builder.supports_update_block_table" in inspect.getsource(V1ModelRunner._build_attention_metadata)
    assert "supports_update_block_table" in inspect.getsource(build_attn_metadata)
    assert FlashAttentionMetadataBuilder.supports_update_block_table


def test_vllm_has_no_cascade_attention_any_more():
    assert "always 0" in inspect.getdoc(AttentionMetadataBuilder.build)
    for build in (V1ModelRunner._build_attention_metadata, build_attn_metadata):
        assert "common_prefix_len" not in inspect.getsource(build)


# ---- the V2 runner


def test_the_v2_runner_applies_staged_writes_after_its_own_changes_and_before_it_reads_rows():
    assert in_order(
        inspect.getsource(v2.GPUModelRunner.execute_model),
        "self.finish_requests(", "self.add_requests(", "self.update_requests(",
        "self.block_tables.apply_staged_writes()", "self.prepare_attn(",
    )  # fmt: skip
    assert in_order(inspect.getsource(v2.GPUModelRunner.prepare_attn), "gather_block_tables(", "compute_slot_mappings(")


def test_the_v2_runners_batch_order_is_the_function_that_we_call():
    assert parameters(v2.sort_batch_req_ids) == ["num_tokens_per_req", "draft_tokens", "decode_query_len"]
    source = inspect.getsource(v2.GPUModelRunner.gather_batch_req_state)
    assert in_order(source, "sort_batch_req_ids(", "num_tokens_per_req, draft_tokens, self.decode_query_len")
    assert "draft_tokens = scheduler_output.scheduled_spec_decode_tokens" in source
    assert "num_tokens_per_req = scheduler_output.num_scheduled_tokens" in source


def test_resumed_requests_are_sent_to_the_v2_runner_as_new():
    source = inspect.getsource(Scheduler.schedule)
    assert in_order(source, "if self.use_v2_model_runner:", "scheduled_new_reqs.extend(scheduled_resumed_reqs)")


def test_the_v2_rows_are_where_they_are_looked_for():
    assert parameters(StagedWriteTensor.stage_write) == ["self", "index", "start", "x"]
    source = inspect.getsource(BlockTables.append_block_ids)
    assert "self.num_blocks.np[i, req_index]" in source
    assert "self.block_tables[i].stage_write(req_index, start, block_ids)" in source
    assert "self.req_states = RequestState(" in inspect.getsource(v2.GPUModelRunner.__init__)
    assert "self.decode_query_len = (" in inspect.getsource(v2.GPUModelRunner.load_model)
    assert "self.block_tables = BlockTables(" in inspect.getsource(v2.GPUModelRunner.initialize_kv_cache)


# ---- the V1 runner


def test_the_v1_runner_copies_its_rows_to_the_device_in_every_step():
    update = inspect.getsource(V1ModelRunner.execute_model)
    assert in_order(update, "self._update_states(", "self._prepare_inputs(")
    assert "self.input_batch.block_table.commit_block_table(num_reqs)" in inspect.getsource(
        V1ModelRunner._prepare_inputs
    )
    assert "self.block_table = MultiGroupBlockTable(" in inspect.getsource(InputBatch.__init__)


def bare_v1_runner():
    table = SimpleNamespace(block_table=SimpleNamespace(np=np.array([[4, 5, 6]])))
    batch = SimpleNamespace(req_ids=["a"], req_id_to_index={"a": 0}, block_table=[table])
    return SimpleNamespace(requests={"a": SimpleNamespace(block_ids=([4, 5, 6],))}, input_batch=batch)


def test_v1_rows_are_nulled_in_the_table_and_in_the_request():
    runner = bare_v1_runner()
    V1Rows(runner).null_evicted(SimpleNamespace(), {"a": [1, 7], "gone": [0]})
    assert runner.input_batch.block_table[0].block_table.np.tolist() == [[4, 0, 6]]
    assert runner.requests["a"].block_ids == ([4, 0, 6],)
    assert V1Rows(runner).request_ids(SimpleNamespace())() == ["a"]


@pytest.mark.parametrize("missing", ["requests", "input_batch"])
def test_a_v1_runner_without_what_is_used_is_refused(missing):
    runner = bare_v1_runner()
    delattr(runner, missing)
    with pytest.raises(UnsupportedError, match=f"no attribute '{missing}"):
        V1Rows(runner)


# ---- the worker


@pytest.fixture
def worker():
    return object.__new__(MemDecayGPUWorker)


def test_the_worker_knows_both_runners_and_no_other(worker, monkeypatch):
    monkeypatch.setattr(V1Rows, "__init__", lambda self, runner: None)
    monkeypatch.setattr(V2Rows, "__init__", lambda self, runner: None)
    assert isinstance(worker._rows_of(object.__new__(V1ModelRunner)), V1Rows)
    assert isinstance(worker._rows_of(object.__new__(v2.GPUModelRunner)), V2Rows)
    with pytest.raises(UnsupportedError, match="neither vLLM's V1 nor its V2"):
        worker._rows_of(object())


def attention_group(builder_class, block_size=16, full_graphs=False):
    builder = object.__new__(builder_class)
    builder.block_size, builder.use_full_cuda_graph, builder.max_cudagraph_size = block_size, full_graphs, 512
    return SimpleNamespace(
        get_metadata_builder=lambda index: builder, backend=SimpleNamespace(__name__="B"), layer_names=["l0", "l1"]
    )


@pytest.mark.parametrize("full_graphs", [False, True])
def test_builders_are_bound_and_unobserved_graphs_are_said(worker, full_graphs, caplog):
    from memdecay_adapters.engine.settings import EngineSettings
    from memdecay_agents import MemDecayConfig

    worker._settings = EngineSettings(config=MemDecayConfig(observed_layers="all"))
    worker._observer = worker._new_observer()
    group = attention_group(MemDecayFlashMetadataBuilder, full_graphs=full_graphs)
    worker._bind_builder(group, 16)
    assert group.get_metadata_builder(0).observer is worker._observer
    assert group.get_metadata_builder(0).observed_layers == {"l0", "l1"}
    assert ("nothing is seen of the attention" in caplog.text) is full_graphs


@pytest.mark.parametrize(("builder", "block_size"), [(FlashAttentionMetadataBuilder, 16),
                                                     (MemDecayFlashMetadataBuilder, 128)])  # fmt: skip
def test_another_backend_or_another_block_size_is_refused(worker, builder, block_size):
    with pytest.raises(UnsupportedError, match="another backend was chosen"):
        worker._bind_builder(attention_group(builder, block_size), 16)
