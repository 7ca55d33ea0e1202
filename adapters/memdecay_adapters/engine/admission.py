"""Who may run now: the sum of guarantees stays within the pool, first come first served.

A request reserves its guarantee when it is admitted and gives it back when it ends or is preempted. One prefill
chunk and the page that it may split are kept free beside the reservations, for a request exceeds its budget by a
chunk while it prefills, and the scheduler computes one chunk's worth of tokens a step for all of them.
"""

from __future__ import annotations


class Admission:
    """Reservations of one pool, in pages. Owned by the scheduler's thread.

    Args:
        pool_pages: usable pages of the pool.
        chunk_pages: pages of one engine step's tokens.
    """

    def __init__(self, pool_pages: int, chunk_pages: int) -> None:
        self.limit_pages = max(pool_pages - chunk_pages - 1, 0)
        """The most that may be reserved at once."""
        self._reserved: dict[str, int] = {}
        self._guaranteed: set[str] = set()
        self._waiting: dict[str, int] = {}
        self.version = 0
        """Grows whenever the reservations change."""

    @property
    def reserved_pages(self) -> int:
        """Pages reserved by running requests."""
        return sum(self._reserved.values())

    def reservations(self) -> list[tuple[str, int]]:
        """Request id and reserved pages of each running request, in the order of admission."""
        return list(self._reserved.items())

    @property
    def waiting_requests(self) -> int:
        """Requests that were turned away for now."""
        return len(self._waiting)

    def is_waiting(self, request_id: str) -> bool:
        """Whether a request was turned away for now."""
        return request_id in self._waiting

    def is_admitted(self, request_id: str) -> bool:
        """Whether a request has its reservation."""
        return request_id in self._reserved

    def fits(self, pages: int) -> bool:
        """Whether a further guarantee of so many pages fits beside the running requests."""
        return not self._reserved or self.reserved_pages + pages <= self.limit_pages

    def admit(self, request_id: str, pages: int, number: int, *, guaranteed: bool) -> bool:
        """Reserve what a request needs; False: it has to wait. Asking again after True changes nothing.

        Args:
            request_id: who asks.
            pages: its guarantee; without a budget, the pages of its tokens so far.
            number: the order of arrival; nobody is admitted before an earlier one that waits.
            guaranteed: whether it has a budget. Requests without one are left to vLLM's own admission as long
                as nobody runs whose guarantee they could take.
        """
        if request_id in self._reserved:
            return True
        earlier = any(other < number for waiting, other in self._waiting.items() if waiting != request_id)
        counted = guaranteed or bool(self._guaranteed)
        if earlier or (counted and not self.fits(pages)):
            self._waiting[request_id] = number
            return False
        self._waiting.pop(request_id, None)
        self._reserved[request_id] = pages
        self.version += 1
        if guaranteed:
            self._guaranteed.add(request_id)
        return True

    def release(self, request_id: str) -> None:
        """The request ended, or lost its pages."""
        if self._reserved.pop(request_id, None) is not None:
            self.version += 1
        self._guaranteed.discard(request_id)
        self._waiting.pop(request_id, None)
