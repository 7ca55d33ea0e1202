"""What the pool gives each running request whose budget is a share of it."""

from __future__ import annotations

from collections.abc import Mapping

from memdecay_adapters.engine.admission import Admission
from memdecay_adapters.engine.tracked_request import TrackedRequest
from memdecay_agents.agent_budgets import Claim, PoolShare, share_out


class PoolShares:
    """Divides what is left of the pool beside the other reservations, anew whenever the running requests change.

    Args:
        admission: the reservations; its limit is what there is to divide.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._version = -1
        self._pages: dict[str, int] = {}

    def of(self, request_id: str, requests: Mapping[str, TrackedRequest], page_size_tokens: int) -> int:
        """The share of an admitted request, in pages; its guarantee where it is not admitted (any more)."""
        if self._version != self._admission.version:
            self._divide(requests, page_size_tokens)
            self._version = self._admission.version
        share = self._pages.get(request_id)
        return share if share is not None else requests[request_id].reserved_pages(page_size_tokens)

    def _divide(self, requests: Mapping[str, TrackedRequest], page_size_tokens: int) -> None:
        claims = {}
        rest = self._admission.limit_pages
        for request_id, reserved in self._admission.reservations():
            tracked = requests.get(request_id)
            if tracked is not None and isinstance(tracked.budget, PoolShare):
                claims[request_id] = Claim(reserved, tracked.most_pages(page_size_tokens), tracked.budget.weight)
            else:
                rest -= reserved
        self._pages = dict(zip(claims, share_out(rest, list(claims.values())), strict=True))
