"""Which requests may begin now: what each one reserves, and what is said of those that wait or are refused.

`admission` keeps the book in pages; here requests become numbers for it.
"""

from __future__ import annotations

import itertools
import logging

from memdecay_adapters.engine.admission import Admission
from memdecay_adapters.engine.events import ADMISSION_REFUSALS, ADMISSION_WAITS, EngineEvents
from memdecay_adapters.engine.tracked_request import Request, TrackedRequest, reservation_pages
from memdecay_agents.budgets import must_stay_pages
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import BudgetError
from memdecay_agents.hints import RequestHints
from memdecay_agents.policies import get_policy

NO_AGENT = "(no hints)"
"""What requests without hints are counted under."""


class RequestAdmission:
    """The requests of one engine, and their reservations. Owned by the scheduler's thread.

    Args:
        config: regions, policy, budgets.
        page_size_tokens: the block size of the engine's cache.
        chunk_tokens: most tokens of one engine step.
        pool_pages: usable pages of the pool.
    """

    def __init__(self, config: MemDecayConfig, page_size_tokens: int, chunk_tokens: int, pool_pages: int) -> None:
        self.config = config
        self.page_size_tokens = page_size_tokens
        self.chunk_pages = -(-chunk_tokens // page_size_tokens)
        self.policy = get_policy(config.policy, config)
        self.admission = Admission(pool_pages, self.chunk_pages)
        self.events = EngineEvents()
        self._requests: dict[str, TrackedRequest] = {}
        self._numbers = itertools.count()
        """Of arrival."""
        self._plain: dict[str, tuple[Request, int]] = {}
        """Requests without hints, and the order of their arrival: they have no session, and take pages all the same."""

    @property
    def request_count(self) -> int:
        """Requests that run or wait."""
        return len(self._requests) + len(self._plain)

    def admits(self, tracked: TrackedRequest) -> bool:
        """Whether a request may begin now; reserves its pages if so."""
        pages = tracked.reserved_pages(self.page_size_tokens)
        return self._admit(
            tracked.request.request_id, tracked.hints.agent, pages, tracked.number, tracked.budget is not None
        )

    def admits_plain(self, request_id: str) -> bool:
        """The same for a request without hints; one that was never announced is left to vLLM."""
        if request_id not in self._plain:
            return True
        request, number = self._plain[request_id]
        return self._admit(request_id, NO_AGENT, self._plain_pages(request), number, False)

    def _plain_pages(self, request: Request) -> int:
        return -(-(request.num_prompt_tokens + request.max_tokens) // self.page_size_tokens)

    def _admit(self, request_id: str, agent: str, pages: int, number: int, guaranteed: bool) -> bool:
        waited_before = self.admission.is_waiting(request_id)
        if self.admission.admit(request_id, pages, number, guaranteed=guaranteed):
            return True
        if not waited_before:
            self.events.note(
                ADMISSION_WAITS,
                agent,
                request=request_id,
                needed_pages=pages,
                reserved_pages=self.admission.reserved_pages,
                limit_pages=self.admission.limit_pages,
            )
        return False

    def check_admission(self, hints: RequestHints, prompt_tokens: int, max_tokens: int) -> None:
        """Refuse a request whose guarantee does not fit now, for ``admission="refuse"``.

        Args:
            hints: of the request.
            prompt_tokens: length of its prompt.
            max_tokens: what it may generate.

        Raises:
            BudgetError: the reservations of those that run, or were accepted before, leave too little of the pool.
        """
        budget = hints.agent_budget(self.config) if self.policy.evicts else None
        if budget is None:
            return
        most = -(-(prompt_tokens + max_tokens) // self.page_size_tokens)
        stays = must_stay_pages(hints, prompt_tokens, max_tokens, self.config)
        pages = reservation_pages(budget, stays, most, self.page_size_tokens)
        reserved = self.admission.reserved_pages + self._accepted_pages()
        if not reserved or reserved + pages <= self.admission.limit_pages:
            return
        self.events.note(
            ADMISSION_REFUSALS,
            hints.agent,
            level=logging.WARNING,
            guaranteed_pages=pages,
            reserved_pages=reserved,
            limit_pages=self.admission.limit_pages,
        )
        raise BudgetError(
            where=f"agent '{hints.agent}'",
            rule=f"its guarantee of {pages} pages does not fit: running agents are guaranteed "
            f"{reserved} of the {self.admission.limit_pages} pages that can be",
            remedy="Send it again when another has ended, lower the guarantees, give the engine more memory, or "
            'start it with admission="wait".',
        )

    def _accepted_pages(self) -> int:
        """What requests will reserve that were accepted and have not begun."""
        tracked = {name: one.reserved_pages(self.page_size_tokens) for name, one in self._requests.items()}
        plain = {name: self._plain_pages(request) for name, (request, _) in self._plain.items()}
        return sum(pages for name, pages in {**tracked, **plain}.items() if not self.admission.is_admitted(name))
