"""What every attention backend does with a step's rows beside attention: choose what to observe, check rows.

All tensors here are on the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from memdecay_adapters.engine.integrity import check_worker_rows
from memdecay_adapters.engine.observer import KeyNorms, ObservedRows, StepObserver
from memdecay_adapters.engine.tier.queries import QueryTails
from memdecay_kernels import CompactTable, MassPlan


def rows_to_observe(
    observer: StepObserver, table: CompactTable, query_start: Sequence[int], page_size_tokens: int
) -> ObservedRows | None:
    """The rows whose attention this step is asked to measure, registered with the observer; None: there are none.

    Args:
        observer: the worker's; knows the step's directions and the batch's request ids in row order.
        table: the batch's compacted rows, one a request.
        query_start: where each row's queries start among the batch's tokens, and where the last one ends.
        page_size_tokens: tokens in a page.
    """
    wanted, started = observer.directions.observe, time.perf_counter_ns()
    if not wanted:
        return None
    request_ids = observer.request_ids()[: table.block_table.shape[0]]
    rows = [row for row, request_id in enumerate(request_ids) if request_id in wanted]
    if not rows:
        return None
    ends = [query_start[row + 1] for row in rows]
    windows = [min(wanted[request_ids[row]], query_start[row + 1] - query_start[row]) for row in rows]
    context_lens = table.kept_tokens[rows]
    kept_pages = table.kept_pages.numpy()
    observed = ObservedRows(
        request_ids=tuple(request_ids[row] for row in rows),
        token_index=tuple(
            _tokens_of(kept_pages[row], int(kept), page_size_tokens)
            for row, kept in zip(rows, context_lens.tolist(), strict=True)
        ),
        plan=MassPlan(
            table.block_table[rows],
            context_lens,
            torch.tensor(ends, dtype=torch.int32),
            torch.tensor(windows, dtype=torch.int32),
            page_size_tokens=page_size_tokens,
            query_tokens=query_start[-1],
        ),
        norms=_norms_wanted(observer, table, rows, request_ids, page_size_tokens),
        stopwatch=observer.stopwatch,
    )
    observer.watch(observed)
    observer.stopwatch.add_since(started)
    return observed


def queries_to_keep(observer: StepObserver, query_start: Callable[[], Sequence[int]]) -> QueryTails | None:
    """Where this step's layers put their queries; None: none are wanted.

    Args:
        observer: the worker's.
        query_start: see `rows_to_observe`; called if it is needed.
    """
    tier = observer.directions.tier
    if observer.queries is None or tier is None or not tier.windows:
        return None
    observer.queries.begin(tier.windows, observer.request_ids(), query_start())
    return observer.queries


def _norms_wanted(
    observer: StepObserver, table: CompactTable, rows: Sequence[int], request_ids: Sequence[str], page_size_tokens: int
) -> KeyNorms | None:
    """The newest pages of each row whose key norms the scheduler does not know yet; None: there are none."""
    if not observer.directions.norms_from:
        return None
    pages, counts = [], []
    for row in rows:
        known_tokens = observer.directions.norms_from.get(request_ids[row])
        kept = np.flatnonzero(table.kept_pages[row].numpy())
        count = 0 if known_tokens is None else int((kept >= known_tokens // page_size_tokens).sum())
        counts.append(count)
        pages.append(table.block_table[row, kept.size - count : kept.size].long())
    return KeyNorms(torch.cat(pages), tuple(counts), page_size_tokens) if any(counts) else None


def _tokens_of(kept_pages: np.ndarray, kept_tokens: int, page_size_tokens: int) -> torch.Tensor:
    """Logical indices of the tokens in the kept pages (bool ``[max_pages]``), int64 ``[kept_tokens]``."""
    first = np.flatnonzero(kept_pages) * page_size_tokens
    return torch.from_numpy((first[:, None] + np.arange(page_size_tokens)).ravel()[:kept_tokens])


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
