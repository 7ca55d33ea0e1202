"""Whether two runs evicted the same pages, up to what floating point may do to pages of equal score."""

from __future__ import annotations

from collections.abc import Sequence

from memdecay_agents.ledger import LedgerEntry

TIE = 1e-5
"""Two pages whose scores differ by less than this may change places between two ways to sum the same attention."""


def plan_difference(one: Sequence[LedgerEntry], other: Sequence[LedgerEntry], tie: float = TIE) -> str | None:
    """The first difference between the evictions of two runs, oldest first; None: they are the same.

    The same page at the same point of the session, or another page whose score differs by less than ``tie``.
    """
    if len(one) != len(other):
        return f"{len(one)} evictions and {len(other)}"
    for place, (a, b) in enumerate(zip(one, other, strict=True)):
        if a.computed_tokens != b.computed_tokens:
            return f"eviction {place}: after {a.computed_tokens} tokens and after {b.computed_tokens}"
        if a.page != b.page and not abs(a.score - b.score) < tie:
            return f"eviction {place}: page {a.page} of score {a.score} and page {b.page} of score {b.score}"
    return None
