"""A row of a block table, as far as this package looks at it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol


class Block(Protocol):
    """The part of vLLM's KVCacheBlock that is looked at."""

    block_id: int
    ref_cnt: int

    @property
    def is_null(self) -> bool:
        """Whether this is the pool's null block."""


def private_pages(row: Sequence[Block], pages: Sequence[int]) -> tuple[int, ...]:
    """Those of ``pages`` that no other row shares: only they are free when they go."""
    return tuple(page for page in pages if row[page].ref_cnt == 1)


def held_pages(row: Iterable[Block]) -> list[int]:
    """Logical pages that a row holds, ascending; where a page was evicted stands the null block."""
    return [page for page, block in enumerate(row) if not block.is_null]
