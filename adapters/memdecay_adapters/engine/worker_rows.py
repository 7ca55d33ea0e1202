"""Null evicted pages in the V1 model runner's block-table rows: the only contact with its internals.

vLLM 0.32's V1 runner (`vllm.v1.worker.gpu_model_runner`, for CPU and GPU alike) keeps every row in a numpy
table on the host and copies the batch's rows to the device at the start of each step
(``commit_block_table``). An entry that is nulled before the step is therefore null on the device in it. The
copy is asynchronous on a GPU: without asynchronous scheduling it is over before the next step's rows are
written.

The GPU use is not run on a GPU; the CPU use is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from memdecay_adapters.engine.required import require_attributes

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner


class V1Rows:
    """The rows of a V1 runner.

    Raises:
        UnsupportedError: the runner lacks an attribute that is used here.
    """

    def __init__(self, runner: GPUModelRunner) -> None:
        require_attributes(
            runner,
            "vLLM's V1 model runner",
            ("requests", "input_batch.req_ids", "input_batch.req_id_to_index", "input_batch.block_table"),
        )
        require_attributes(runner.input_batch.block_table[0], "its block table", ("block_table.np",))
        self._runner = runner

    def null_evicted(self, scheduler_output: SchedulerOutput, evicted: dict[str, list[int]]) -> None:
        """Null evicted entries before the runner updates its states for the step."""
        null_evicted_pages(self._runner, evicted)

    def fill_restored(self, restored: dict[str, dict[int, int]]) -> None:
        """Write pages that came back, after `null_evicted` and before the runner updates its states for the step.

        Args:
            restored: request id to logical page to page id.
        """
        table = self._runner.input_batch.block_table[0].block_table.np
        for request_id, pages in restored.items():
            state = self._runner.requests.get(request_id)
            if state is None:
                continue  # its row comes whole
            row = self._runner.input_batch.req_id_to_index.get(request_id)
            for page, block in pages.items():
                if page < len(state.block_ids[0]):
                    state.block_ids[0][page] = block
                    if row is not None:
                        table[row, page] = block

    def request_ids(self, scheduler_output: SchedulerOutput) -> Callable[[], list[str]]:
        """How to learn the batch's request ids in row order once the runner has put them in order."""
        return lambda: self._runner.input_batch.req_ids


def null_evicted_pages(runner: GPUModelRunner, evicted: dict[str, list[int]]) -> None:
    """Write the null page over evicted entries, before the runner updates its states for the step.

    Rows of new and resumed requests are sent whole by the scheduler, with the nulls in them already.

    Args:
        runner: vLLM 0.32's V1 model runner.
        evicted: request id to logical pages.
    """
    table = runner.input_batch.block_table[0].block_table.np
    for request_id, pages in evicted.items():
        state = runner.requests.get(request_id)
        if state is None:
            continue
        block_ids = state.block_ids[0]
        present = [page for page in pages if page < len(block_ids)]
        for page in present:
            block_ids[page] = 0
        row = runner.input_batch.req_id_to_index.get(request_id)
        if row is not None:
            table[row, present] = 0
