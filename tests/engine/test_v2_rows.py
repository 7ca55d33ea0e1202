"""Nulling evicted pages under vLLM's V2 model runner: its real request states and block tables, on the CPU.

The runner itself needs a GPU or Triton for the CPU. Its own bookkeeping methods run here on a stand-in that has
only what they use, and the one Triton kernel that applies staged writes is plain Python, which also checks
that no two writes of a step meet: the kernel makes them in no order.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.worker.gpu import buffer_utils
from vllm.v1.worker.gpu.block_table import BlockTables
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.states import RequestState

from memdecay_adapters.engine.worker_rows_v2 import V2Rows, runs
from memdecay_agents.errors import UnsupportedError

PAGE, PAGES, SLOTS = 16, 12, 3


class PlainApplyWrites:
    """`_apply_write_kernel` for one table, with a check that the writes may run in any order."""

    def __getitem__(self, grid):
        def apply(table, stride, indices, starts, contents, ends, group_ids, **_):
            assert group_ids is None
            written, begin = set(), 0
            for index, start, end in zip(indices.tolist(), starts.tolist(), ends.tolist(), strict=True):
                if table.dim() == 1:
                    cells = {(index,)}
                    table[index] = contents[begin]
                else:
                    cells = {(index, start + i) for i in range(end - begin)}
                    table[index, start : start + end - begin] = contents[begin:end]
                assert not cells & written, "two writes of one step meet"
                written |= cells
                begin = end

        return apply


@pytest.fixture(scope="module", autouse=True)
def cpu_buffers():
    with (
        patch.object(buffer_utils, "is_uva_available", lambda: False),
        patch.object(buffer_utils, "_apply_write_kernel", PlainApplyWrites()),
    ):
        yield


def bare_runner():
    """What the V2 runner's bookkeeping uses, on the CPU."""
    cpu = torch.device("cpu")
    runner = SimpleNamespace(
        req_states=RequestState(SLOTS, PAGES * PAGE, 64, 0, 100, cpu),
        block_tables=BlockTables([PAGE], SLOTS, 64, [PAGES], cpu),
        model_state=MagicMock(), lora_state=MagicMock(), decode_query_len=1, is_last_pp_rank=False,
        pooling_runner=None, pp_handler=None, encoder_cache=None, prompt_logprobs_worker=None,
        adaptive_verification=None, sampler=None, kv_block_zeroer=None,
    )  # fmt: skip
    runner._remove_request = lambda request_id: GPUModelRunner._remove_request(runner, request_id)
    return runner


def step(runner, evicted, *, new=(), appended=(), finished=(), preempted=None, null=V2Rows.null_evicted):
    """What `GPUModelRunner.execute_model` does first, after our hook."""
    output = SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(
                req_id=request_id, prefill_token_ids=[1] * (len(row) * PAGE), prompt_len=len(row) * PAGE,
                sampling_params=None, num_computed_tokens=0, block_ids=(row,), lora_request=None,
            )
            for request_id, row in new
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[request_id for request_id, _ in appended], num_computed_tokens=[0] * len(appended),
            new_block_ids=[(pages,) if pages else None for _, pages in appended],
        ),
        finished_req_ids=set(finished), preempted_req_ids=preempted,
        new_block_ids_to_zero=None, kv_cache_block_copies=None,
    )  # fmt: skip
    null(V2Rows(runner), output, evicted)
    GPUModelRunner.finish_requests(runner, output)
    GPUModelRunner.add_requests(runner, output)
    GPUModelRunner.update_requests(runner, output)
    runner.block_tables.apply_staged_writes()


def row_of(runner, request_id):
    slot = runner.req_states.req_id_to_index[request_id]
    held = int(runner.block_tables.num_blocks.np[0, slot])
    return runner.block_tables.block_tables[0].gpu[slot, :held].tolist()


class Scheduler:
    """Rows as the scheduler has them, and the steps that lead there."""

    def __init__(self, draw):
        self.draw, self.rows, self.waiting, self.made = draw, {}, [], 0
        self.next_page = 1

    def pages(self, count):
        self.next_page += count
        return list(range(self.next_page - count, self.next_page))

    def evict(self, request_id):
        """Null some full pages, not the last; returns which."""
        row = self.rows[request_id]
        chosen = self.draw(st.sets(st.integers(0, max(len(row) - 2, 0)), max_size=4))
        gone = [page for page in chosen if page < len(row) - 1 and row[page]]
        for page in gone:
            row[page] = 0
        return gone

    def step(self):
        draw, evicted, appended, new = self.draw, {}, [], []
        finished = {r for r in list(self.rows) if draw(st.integers(0, 5)) == 0}
        preempted = {r for r in list(self.rows) if r not in finished and draw(st.integers(0, 5)) == 0}
        for request_id in list(self.rows):
            if gone := self.evict(request_id):
                evicted[request_id] = gone
            if request_id in finished | preempted:
                del self.rows[request_id]
                continue
            more = self.pages(draw(st.integers(0, 2))) if len(self.rows[request_id]) < PAGES - 2 else []
            self.rows[request_id] += more
            appended.append((request_id, more))
        resumed = [r for r in self.waiting if draw(st.booleans())]
        while len(self.rows) < SLOTS and (resumed or draw(st.booleans())):
            request_id = resumed.pop() if resumed else f"r{self.made}"
            self.made += 1
            self.rows[request_id] = self.pages(draw(st.integers(1, 5)))
            if gone := self.evict(request_id):  # of a cached prefix, at admission
                evicted[request_id] = gone
            self.waiting = [r for r in self.waiting if r != request_id]
            new.append((request_id, list(self.rows[request_id])))
        self.waiting += sorted(preempted)
        return {"evicted": evicted, "appended": appended, "new": new, "finished": finished, "preempted": preempted}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_devices_rows_are_the_schedulers_after_every_step(data):
    runner, scheduler = bare_runner(), Scheduler(data.draw)
    for _ in range(data.draw(st.integers(2, 8))):
        step(runner, **scheduler.step())
        assert {r: row_of(runner, r) for r in runner.req_states.req_id_to_index} == scheduler.rows


def null_without_skipping(rows, output, evicted):
    """A planted fault: rows that are given up in this step are written all the same."""
    output = SimpleNamespace(scheduled_new_reqs=[], finished_req_ids=set(), preempted_req_ids=None)
    V2Rows.null_evicted(rows, output, evicted)


@pytest.mark.parametrize("gone", [{"finished": {"a"}}, {"preempted": {"a"}}])
def test_a_slot_that_passes_to_a_new_request_in_the_same_step_is_not_written(gone):
    def change_hands(null):
        runner = bare_runner()
        step(runner, {}, new=[("a", [1, 2, 3]), ("b", [4]), ("c", [5])])
        step(runner, {"a": [0]}, new=[("d", [6, 7])], **gone, null=null)
        return row_of(runner, "d")

    assert change_hands(V2Rows.null_evicted) == [6, 7]
    with pytest.raises(AssertionError, match="two writes of one step meet"):
        change_hands(null_without_skipping)


def test_a_request_that_is_replaced_under_its_own_name_keeps_the_row_it_is_sent_with():
    runner = bare_runner()
    step(runner, {}, new=[("a", [1, 2, 3])])
    step(runner, {"a": [0]}, new=[("a", [0, 2, 3, 8])])
    assert row_of(runner, "a") == [0, 2, 3, 8]


def test_a_rows_last_page_can_be_nulled_and_pages_behind_it_are_not_touched():
    runner = bare_runner()
    step(runner, {}, new=[("a", [1, 2, 3])])
    step(runner, {"a": [2, 3, 4]}, appended=[("a", [7, 8])])
    assert row_of(runner, "a") == [1, 2, 0, 7, 8]


def test_requests_that_the_worker_does_not_know_are_left_out():
    runner = bare_runner()
    step(runner, {}, new=[("a", [1, 2, 3])])
    step(runner, {"gone": [0], "a": [1]})
    assert row_of(runner, "a") == [1, 0, 3]


@given(st.lists(st.integers(0, 30), unique=True).map(sorted))
def test_runs_are_neighbours_and_lose_nothing(numbers):
    found = list(runs(numbers))
    assert [start + i for start, count in found for i in range(count)] == numbers
    assert all(first + count < second for (first, count), (second, _) in itertools.pairwise(found))


def test_the_batchs_order_is_the_runners():
    output = SimpleNamespace(
        num_scheduled_tokens={"long": 40, "decode": 1, "short": 3}, scheduled_spec_decode_tokens={}
    )
    assert V2Rows(bare_runner()).request_ids(output)() == ["decode", "short", "long"]


@pytest.mark.parametrize("missing", ["req_states", "block_tables", "decode_query_len"])
def test_a_runner_without_what_is_used_is_refused(missing):
    runner = bare_runner()
    delattr(runner, missing)
    with pytest.raises(UnsupportedError, match=f"no attribute '{missing}"):
        V2Rows(runner)


def test_two_block_tables_are_refused():
    runner = bare_runner()
    runner.block_tables.block_tables *= 2
    with pytest.raises(UnsupportedError, match="2 block tables"):
        V2Rows(runner)
