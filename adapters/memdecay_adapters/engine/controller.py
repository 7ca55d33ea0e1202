"""The scheduler's side of eviction: whose request this is, what it may hold, what to free, what was freed.

vLLM's request ids on one side, the core's sessions on the other. The manager asks, the controller answers
from `SessionState`; nothing here touches a block or a tensor, and nothing here may raise on a user's input,
for an exception in the scheduler ends the engine: what cannot be served by region is served without, counted
and logged.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np

from memdecay_adapters.engine.tracked_request import TrackedRequest
from memdecay_adapters.engine.validation import plain_hints
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import IntegrityError, MemDecayError
from memdecay_agents.hints import RequestHints
from memdecay_agents.ledger import Ledger
from memdecay_agents.observations import Observation
from memdecay_agents.policies import get_policy
from memdecay_agents.session_state import SessionState
from memdecay_agents.sessions import SessionId

logger = logging.getLogger(__name__)

MAX_SUMMARIES = 1024
"""Summaries of ended requests that nobody has taken yet, at most."""


class Request(Protocol):
    """The part of vLLM's scheduler request that is read."""

    request_id: str
    sampling_params: Any
    num_prompt_tokens: int
    num_computed_tokens: int
    max_tokens: int

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens so far."""

    def is_finished(self) -> bool:
        """Whether it has ended."""


class EvictionController:
    """Sessions, plans and the ledger of one engine. Owned by the scheduler's thread.

    Args:
        config: regions, policy, budgets, measurement.
        page_size_tokens: the block size of the engine's cache.
        chunk_tokens: most tokens of one engine step.
    """

    def __init__(self, config: MemDecayConfig, page_size_tokens: int, chunk_tokens: int) -> None:
        self.config = config
        self.page_size_tokens = page_size_tokens
        self.chunk_pages = -(-chunk_tokens // page_size_tokens)
        self.policy = get_policy(config.policy, config)
        self.ledger = Ledger()
        self.bypasses: Counter[str] = Counter()
        """Requests served without regions, by reason."""
        self.preemptions = 0
        self._requests: dict[str, TrackedRequest] = {}
        self._holders: dict[SessionId, str] = {}
        self._evicted_since_step: dict[str, list[int]] = {}
        self._summaries: dict[str, dict[str, Any]] = {}

    # ---- a request's life

    def start(self, request: Request) -> None:
        """Read a request's hints and begin its turn; never raises on what they say."""
        try:
            hints = self._hints_of(request)
            if hints is None:
                return
            tracked = self._begin(request, hints)
        except MemDecayError as error:
            self.bypasses[error.code] += 1
            logger.warning("request %s is served without regions: %s", request.request_id, error)
            return
        self._requests[request.request_id] = tracked

    def _hints_of(self, request: Request) -> RequestHints | None:
        extra_args = getattr(request.sampling_params, "extra_args", None)
        hints = RequestHints.from_extra_args(extra_args)
        if hints is None and self.config.default_budget_tokens is not None:
            return plain_hints(request.num_prompt_tokens, session=request.request_id)
        return hints

    def _begin(self, request: Request, hints: RequestHints) -> TrackedRequest:
        session_id = hints.session_id
        if not session_id.thread_id or session_id in self._holders:
            # No thread, or the session is held by a request that still runs: a session of this one turn.
            session_id = session_id._replace(branch=f"{session_id.branch}~{request.request_id}")
        state = SessionState(session_id, hints.agent, self.config, self.policy, ledger=self.ledger)
        state.begin_turn(hints, request.num_prompt_tokens)
        self._holders[session_id] = request.request_id
        return TrackedRequest(request, state)

    def prefix_hit(self, request_id: str, hit_tokens: int) -> None:
        """A request starts on a cached prefix: these positions exist without having been computed here."""
        tracked = self._requests.get(request_id)
        if tracked is not None:
            tracked.state.on_computed(hit_tokens, 0)

    def released(self, request_id: str) -> None:
        """The request lost all its pages: preempted, for a finished one is no longer known here."""
        self._evicted_since_step.pop(request_id, None)
        tracked = self._requests.get(request_id)
        if tracked is not None:
            self.preemptions += 1
            tracked.clean_pages = None
            tracked.state.reset_cache()

    def finish(self, request_id: str) -> dict[str, Any] | None:
        """End a request: its retention summary as plain data; None if it was never tracked."""
        self._evicted_since_step.pop(request_id, None)
        tracked = self._requests.pop(request_id, None)
        if tracked is None:
            return None
        summary = asdict(tracked.summary(self.page_size_tokens, self.policy.name))
        self._holders.pop(tracked.state.session_id, None)
        tracked.state.close()
        if len(self._summaries) >= MAX_SUMMARIES:
            del self._summaries[next(iter(self._summaries))]
        self._summaries[request_id] = summary
        return summary

    def take_summary(self, request_id: str) -> dict[str, Any] | None:
        """The retention summary of a request that has ended, once; None if it was never tracked."""
        return self._summaries.pop(request_id, None)

    # ---- asked by the cache manager

    def pages_to_evict(
        self, request_id: str, held_pages: Sequence[int], table_pages: int, processed_tokens: int
    ) -> tuple[int, ...]:
        """Plan and book what the request must give up before its next pages are allocated.

        While prefilling it is brought down to its budget before each chunk; when only one token is left to
        compute, also the page of that token must fit.

        Args:
            request_id: the request about to be scheduled.
            held_pages: logical pages that its row holds, ascending.
            table_pages: length of its row, holes included.
            processed_tokens: tokens whose keys and values are complete.

        Returns:
            Logical pages, each booked in the ledger; the caller frees them.
        """
        tracked = self._requests.get(request_id)
        if tracked is None or tracked.state.budget_pages is None or tracked.request.is_finished():
            return ()
        needed_pages = 0
        if tracked.request.num_tokens - processed_tokens <= 1:
            needed_pages = max(processed_tokens // self.page_size_tokens + 1 - table_pages, 0)
        plan = tracked.state.plan(processed_tokens, held_pages, needed_pages)
        if plan.fault is not None:
            self.bypasses["policy_fault"] += 1
            logger.error("request %s: %s", request_id, plan.fault)
        tracked.shortfall_pages = max(tracked.shortfall_pages, plan.shortfall_pages)
        if not plan.pages:
            return ()
        self._refuse_pinned(tracked.state, plan.pages)
        tracked.state.apply(plan, request_id=request_id)
        tracked.evictions += len(plan.pages)
        if tracked.clean_pages is None:
            tracked.clean_pages = processed_tokens // self.page_size_tokens
        self._evicted_since_step.setdefault(request_id, []).extend(plan.pages)
        return plan.pages

    def allocated(self, request_id: str, held_pages: Sequence[int]) -> None:
        """Book what the request's row holds after an allocation."""
        tracked = self._requests.get(request_id)
        if tracked is not None:
            tracked.state.note_held(held_pages)
            tracked.note_peak(len(held_pages))

    def admission_cap_pages(self, request_id: str) -> int | None:
        """Most pages that the request can hold at once; None: it has no budget."""
        tracked = self._requests.get(request_id)
        if tracked is None or tracked.state.budget_pages is None:
            return None
        return tracked.state.budget_pages + self.chunk_pages + 1

    def clean_tokens(self, request_id: str) -> int | None:
        """Tokens up to which the request saw its whole context; None: it still does."""
        tracked = self._requests.get(request_id)
        if tracked is None or tracked.clean_pages is None:
            return None
        return tracked.clean_pages * self.page_size_tokens

    # ---- each step

    def step(self, scheduled_tokens: Mapping[str, int]) -> tuple[dict[str, list[int]], dict[str, int]]:
        """Close the planning of a step.

        Args:
            scheduled_tokens: request id to the tokens that this step computes.

        Returns:
            The pages evicted since the last step and the queries to observe, both by request id.
        """
        evicted, self._evicted_since_step = self._evicted_since_step, {}
        observe = {}
        for request_id, tokens in scheduled_tokens.items():
            tracked = self._requests.get(request_id)
            if tracked is not None:
                queries = tracked.schedule(tokens, self.config, self.policy.uses_attention)
                if queries:
                    observe[request_id] = queries
        return evicted, observe

    def observe(self, request_id: str, token_index: np.ndarray, mass: np.ndarray, queries: int) -> None:
        """Take in measured attention; see `Observation`. A malformed one is counted, never raised."""
        tracked = self._requests.get(request_id)
        if tracked is None:
            return  # it ended in the very step that measured it
        represented = queries if queries > 1 else tracked.observed_stride
        try:
            tracked.state.observe(Observation(token_index, mass, represented_queries=represented, decode=queries == 1))
        except MemDecayError as error:
            self.bypasses[error.code] += 1
            logger.error("request %s: %s", request_id, error)

    # ---- looking inside

    def ledger_copy(self) -> Ledger:
        """The ledger as it is now."""
        return copy.deepcopy(self.ledger)

    def check_integrity(self, held_by_request: Mapping[str, Sequence[int]]) -> None:
        """Check the ledger against the rows that the cache manager really holds.

        Raises:
            LedgerError: they differ, a page was freed twice, or a pinned page was freed.
        """
        self.ledger.check_integrity(
            {tracked.state.key: held_by_request.get(request_id, ()) for request_id, tracked in self._requests.items()}
        )

    def _refuse_pinned(self, state: SessionState, pages: Sequence[int]) -> None:
        if not self.config.policy_pins:
            return
        page = self.page_size_tokens
        for number in pages:
            if state.tokens.pinned[number * page : (number + 1) * page].any():
                raise IntegrityError(
                    where=f"session {state.key!r}, page {number}",
                    rule=f"policy {self.policy.name!r} chose a pinned page",
                    remedy="Check the policy with memdecay_agents.testing.check_policy.",
                )
