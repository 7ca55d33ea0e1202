"""Invariants of the block pool and of block-table rows, checked at every step when asked.

An engine that evicts can go wrong silently: a page freed twice is handed to two requests, a row that still
names a freed page reads another request's keys. Throughput looks fine, answers do not. These checks turn
each of these into an IntegrityError at the step where it happens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from memdecay_adapters.engine.block_rows import Block
from memdecay_agents.errors import IntegrityError

_REMEDY = "This is a fault of the engine, not of your request: please report it with the ledger of the run."


def check_rows_against_pool(
    rows: Mapping[str, Sequence[Block]], free_blocks: Iterable[Block], total_blocks: int
) -> None:
    """Check that live rows, reference counts and the free list agree.

    Args:
        rows: each live request's blocks in logical order; evicted pages hold the null block.
        free_blocks: the pool's free list, in any order.
        total_blocks: all blocks of the pool, the null block included.

    Raises:
        IntegrityError: a live row points at a free block (reachability), a block is free twice or was
            freed more often than it was held (double free), or blocks are lost (leak).
    """
    held: Counter[int] = Counter()
    ref_counts: dict[int, int] = {}
    owner: dict[int, str] = {}
    for request_id, blocks in rows.items():
        for block in blocks:
            if not block.is_null:
                held[block.block_id] += 1
                ref_counts[block.block_id] = block.ref_cnt
                owner.setdefault(block.block_id, request_id)
    free: Counter[int] = Counter()
    for block in free_blocks:
        free[block.block_id] += 1
        if block.ref_cnt and block.block_id not in held:
            _fail(f"block {block.block_id}", f"it is free, its reference count is {block.ref_cnt}: it was freed twice")
    for block_id, times in free.items():
        if times > 1:
            _fail(f"block {block_id}", f"it stands in the free list {times} times: it was freed twice")
        if block_id in held:
            _fail(f"request {owner[block_id]!r}", f"its row points at block {block_id}, which is free")
    for block_id, times in held.items():
        if ref_counts[block_id] != times:
            _fail(
                f"block {block_id} of request {owner[block_id]!r}",
                f"{times} live rows hold it, its reference count is {ref_counts[block_id]}",
            )
    accounted = len(free) + len(held) + 1
    if accounted != total_blocks:
        _fail(
            "block pool",
            f"{len(free)} free + {len(held)} held + 1 null block make {accounted}, the pool has {total_blocks}",
        )


def check_worker_rows(expected: Mapping[str, Sequence[int]], actual: Mapping[str, Sequence[int]]) -> None:
    """Check that the rows that the attention kernel will read are the scheduler's rows of this step.

    Args:
        expected: request id to page ids, evicted pages as 0, from the scheduler.
        actual: the same from the worker's block table.

    Raises:
        IntegrityError: a row is stale: it names other pages than the scheduler's.
    """
    for request_id, row in actual.items():
        want = expected.get(request_id)
        if want is None:
            _fail(f"request {request_id!r}", "the worker runs it, the scheduler did not schedule it")
        elif list(want[: len(row)]) != list(row):
            page = next((i for i, (a, b) in enumerate(zip(want, row, strict=False)) if a != b), len(want))
            scheduled = f"block {want[page]}" if page < len(want) else "no page"
            _fail(
                f"request {request_id!r}, page {page}",
                f"the worker's row names block {row[page]}, the scheduler's {scheduled}: the row is stale",
            )


def _fail(where: str, rule: str) -> None:
    raise IntegrityError(where=where, rule=rule, remedy=_REMEDY)
