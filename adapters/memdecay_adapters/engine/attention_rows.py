"""What every attention backend does with a step's rows beside attention: choose what to observe, check rows.

All tensors here are on the host.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from memdecay_adapters.engine.integrity import check_worker_rows
from memdecay_adapters.engine.observer import ObservedRow, StepObserver
from memdecay_kernels import CompactTable


def rows_to_observe(
    observer: StepObserver, table: CompactTable, query_start: Sequence[int], page_size_tokens: int
) -> tuple[ObservedRow, ...]:
    """The rows whose attention this step is asked to measure, registered with the observer.

    Args:
        observer: the worker's; knows the step's directions and the batch's request ids in row order.
        table: the batch's compacted rows, one a request.
        query_start: where each row's queries start among the batch's tokens, and where the last one ends.
        page_size_tokens: tokens in a page.
    """
    wanted = observer.directions.observe
    rows = []
    request_ids = observer.request_ids() if wanted else []
    for index in range(table.block_table.shape[0]):
        if not wanted or request_ids[index] not in wanted:
            continue
        kept_tokens = int(table.kept_tokens[index])
        kept_pages = torch.nonzero(table.kept_pages[index]).flatten()
        tokens = kept_pages[:, None] * page_size_tokens + torch.arange(page_size_tokens)[None, :]
        norms_from = observer.directions.norms_from.get(request_ids[index])
        row = ObservedRow(
            request_id=request_ids[index],
            pages=table.block_table[index, : kept_pages.numel()].long(),
            token_index=tokens.flatten()[:kept_tokens],
            query_end=query_start[index + 1],
            queries=min(wanted[request_ids[index]], query_start[index + 1] - query_start[index]),
            norm_pages=0 if norms_from is None else int((kept_pages >= norms_from // page_size_tokens).sum()),
        )
        observer.watch(row)
        rows.append(row)
    return tuple(rows)


def check_step_rows(
    observer: StepObserver, block_table: torch.Tensor, seq_lens: torch.Tensor, page_size_tokens: int
) -> None:
    """Check the rows that attention is about to read against the scheduler's, where it sent them.

    Args:
        observer: the worker's; ``directions.expected_rows`` is None unless integrity is checked.
        block_table: int32 ``[requests, max_pages]``, before compaction.
        seq_lens: int32 ``[requests]``: logical lengths in tokens.
        page_size_tokens: tokens in a page.

    Raises:
        IntegrityError: a row is stale.
    """
    expected = observer.directions.expected_rows
    if expected is None:
        return
    actual = {}
    request_ids = observer.request_ids()
    for index in range(block_table.shape[0]):
        pages = -(-int(seq_lens[index]) // page_size_tokens)
        actual[request_ids[index]] = block_table[index, :pages].tolist()
    check_worker_rows(expected, actual)
