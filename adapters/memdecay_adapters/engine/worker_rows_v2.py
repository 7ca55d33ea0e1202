"""Null evicted pages in the V2 model runner's block-table rows: the only contact with its internals.

vLLM 0.32's V2 runner (`vllm.v1.worker.gpu.model_runner`) keeps the rows on the device. Changes are staged on
the host and applied by one kernel at the start of each step, after requests were removed and added
(``BlockTables.apply_staged_writes``). That kernel makes the staged writes side by side, in no order, so that
no two of one step may meet: a slot that is given up in this step may get a new request's whole row in the
same step, and is not written here.

Not run on a GPU. Tested on the real `BlockTables` on the CPU, with the kernel that applies the writes
replaced by plain Python: it needs Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from memdecay_adapters.engine.required import require_attributes
from memdecay_agents.errors import UnsupportedError

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.worker.gpu.block_table import BlockTables
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner


class V2Rows:
    """The rows of a V2 runner, after its cache was initialized.

    Raises:
        UnsupportedError: the runner lacks an attribute that is used here, or has more than one block table.
    """

    def __init__(self, runner: GPUModelRunner) -> None:
        name = "vLLM's V2 model runner"
        require_attributes(
            runner, name, ("req_states.req_id_to_index", "block_tables.block_tables", "decode_query_len")
        )
        require_attributes(runner.block_tables, f"block tables of {name}", ("num_blocks.np", "apply_staged_writes"))
        if len(runner.block_tables.block_tables) != 1:
            raise UnsupportedError(
                where=name,
                rule=f"it has {len(runner.block_tables.block_tables)} block tables, and pages are evicted from one",
                remedy="Use a model whose layers are all full attention.",
            )
        require_attributes(runner.block_tables.block_tables[0], f"block table of {name}", ("stage_write", "gpu"))
        from vllm.v1.worker.gpu.model_runner import sort_batch_req_ids

        self._runner = runner
        self._sort = sort_batch_req_ids

    def null_evicted(self, scheduler_output: SchedulerOutput, evicted: dict[str, list[int]]) -> None:
        """Stage nulls over evicted entries, before the runner updates its states for the step.

        Requests that are new in this step (after a preemption they are sent as new) come with whole rows, the
        nulls in them already; finished and preempted ones have no row any more.

        Args:
            scheduler_output: the step that is about to run.
            evicted: request id to logical pages.
        """
        rewritten = {request.req_id for request in scheduler_output.scheduled_new_reqs}
        rewritten |= scheduler_output.finished_req_ids | (scheduler_output.preempted_req_ids or set())
        slots = self._runner.req_states.req_id_to_index
        for request_id, pages in evicted.items():
            if request_id not in rewritten and request_id in slots:
                stage_nulls(self._runner.block_tables, slots[request_id], pages)

    def fill_restored(self, restored: dict[str, dict[int, int]]) -> None:
        """Nothing comes back here: the host tier is refused on a GPU.

        Raises:
            UnsupportedError: something is to come back.
        """
        if restored:
            raise UnsupportedError(
                where="host tier",
                rule="pages do not come back into the V2 model runner's rows",
                remedy="Leave host_tier out.",
            )

    def request_ids(self, scheduler_output: SchedulerOutput) -> Callable[[], list[str]]:
        """How to learn the batch's request ids in row order: the runner's own sorting of the step."""
        return lambda: list(
            self._sort(
                scheduler_output.num_scheduled_tokens,
                scheduler_output.scheduled_spec_decode_tokens,
                self._runner.decode_query_len,
            )
        )


def stage_nulls(tables: BlockTables, slot: int, pages: Sequence[int]) -> None:
    """Stage null pages for one row; a run of neighbouring pages is one write.

    Args:
        tables: vLLM 0.32's block tables of a V2 runner, with one cache group.
        slot: the request's row.
        pages: logical pages; those behind the row's end are left out, for they may be written in this step.
    """
    held = int(tables.num_blocks.np[0, slot])
    for start, count in runs(sorted(page for page in pages if page < held)):
        tables.block_tables[0].stage_write(slot, start, [0] * count)


def runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut ascending numbers into runs of neighbours: (first, how many)."""
    start = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
            yield numbers[start], end - start
            start = end
