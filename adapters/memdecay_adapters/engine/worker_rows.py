"""Null evicted pages in the V1 model runner's block-table rows: the only contact with its internals."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner


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
