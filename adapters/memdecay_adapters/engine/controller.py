"""The scheduler's side of eviction: whose request this is, what it may hold, what to free, what was freed.

vLLM's request ids on one side, the core's sessions on the other. The cache manager asks, the controller answers
from `SessionState`; nothing here touches a block or a tensor, and nothing here may raise on a user's input,
for an exception in the scheduler ends the engine: what cannot be served by region is served without, counted
and logged.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from memdecay_adapters.engine.integrity import Block
from memdecay_adapters.engine.results import RetentionSummary
from memdecay_adapters.engine.session_store import RetainedSession, SessionStore
from memdecay_adapters.engine.settings import EngineSettings
from memdecay_adapters.engine.tracked_request import Request, TrackedRequest, summarise
from memdecay_agents.budgets import budget_pages
from memdecay_agents.errors import IntegrityError, MemDecayError, SpanError
from memdecay_agents.hints import RequestHints
from memdecay_agents.ledger import Ledger
from memdecay_agents.observations import Observation
from memdecay_agents.policies import get_policy
from memdecay_agents.session_state import SessionState
from memdecay_agents.sessions import SessionId
from memdecay_agents.spans import Span, clip

logger = logging.getLogger(__name__)

MAX_SUMMARIES = 1024
"""Summaries of ended requests that nobody has asked for yet."""


class EvictionController:
    """Sessions, plans and the ledger of one engine. Owned by the scheduler's thread.

    Args:
        settings: regions, policy, budgets, measurement; whether and how long sessions are kept.
        page_size_tokens: the block size of the engine's cache.
        chunk_tokens: most tokens of one engine step.
    """

    def __init__(self, settings: EngineSettings, page_size_tokens: int, chunk_tokens: int) -> None:
        self.config = settings.config
        self.page_size_tokens = page_size_tokens
        self.chunk_pages = -(-chunk_tokens // page_size_tokens)
        self.policy = get_policy(self.config.policy, self.config)
        self.ledger = Ledger()
        self.sessions = SessionStore(page_size_tokens, settings.session_idle_seconds, settings.max_idle_sessions)
        self.bypasses: Counter[str] = Counter()
        """Requests served without regions, by reason."""
        self.preemptions = 0
        self.parked_sessions = 0
        """Idle sessions given up because a running request needed their pages."""
        self.free_blocks: Callable[[Sequence[Block]], None] = lambda blocks: None
        """Gives blocks back to the pool; bound to the cache manager."""
        self._keep_sessions = settings.keep_sessions
        self._retiring: dict[str, RetainedSession] = {}
        self._summaries: OrderedDict[str, RetentionSummary] = OrderedDict()
        self._requests: dict[str, TrackedRequest] = {}
        self._holders: dict[SessionId, str] = {}
        self._evicted_since_step: dict[str, list[int]] = {}

    # ---- a request's life

    def start(self, request: Request) -> None:
        """Read a request's hints; never raises on what they say."""
        try:
            hints = self._hints_of(request)
            if hints is None:
                return
            hints.check(request.num_prompt_tokens, self.config)
            if hints.base:
                raise SpanError(
                    where=f"agent '{hints.agent}', turn {hints.turn}",
                    rule=f"the spans begin at token {hints.base}, and this engine is sent whole prompts",
                    remedy="Send base 0 with spans for the whole prompt; what a session holds is found here.",
                )
        except MemDecayError as error:
            self.bypasses[error.code] += 1
            logger.warning("request %s is served without regions: %s", request.request_id, error)
            return
        home = hints.session_id
        # No thread, or the session is held by a request that still runs: a session of this one turn.
        alone = not home.thread_id or home in self._holders
        if alone:
            home = home._replace(branch=f"{home.branch}~{request.request_id}")
        tokens = self.config.default_budget_tokens if hints.budget_tokens is None else hints.budget_tokens
        pages = budget_pages(tokens, self.page_size_tokens) if self.policy.evicts else None
        self._holders[home] = request.request_id
        self._requests[request.request_id] = TrackedRequest(
            request, hints, home, retains=self._keep_sessions and not alone, budget_pages=pages
        )

    def _hints_of(self, request: Request) -> RequestHints | None:
        extra_args = getattr(request.sampling_params, "extra_args", None)
        hints = RequestHints.from_extra_args(extra_args)
        if hints is None and self.config.default_budget_tokens is not None:
            # A request that names no regions still keeps to the default budget, as one user span.
            return RequestHints(spans=(Span(0, request.num_prompt_tokens, "user"),))
        return hints

    def matched_tokens(self, request: Request, cached_tokens: int) -> int:
        """Tokens beyond a prefix-cache hit that an idle session of the request would save; changes no session.

        A session that reaches as far as the hit is continued too: it knows what attention said of its tokens.

        Args:
            request: not yet scheduled.
            cached_tokens: length of the prefix-cache hit.
        """
        tracked = self._requests.get(request.request_id)
        if tracked is None or tracked.state is not None or not tracked.retains:
            return 0
        least = min(tracked.hints.spans[0].end, request.num_prompt_tokens - 1)
        match = self.sessions.match(tracked.home, request.prompt_token_ids, least)
        tracked.match = match if match is not None and match.tokens >= cached_tokens else None
        return tracked.match.tokens - cached_tokens if tracked.match is not None else 0

    def continue_session(self, request_id: str) -> RetainedSession:
        """The request takes over the idle session that it matched, rewound to the shared prefix."""
        tracked = self._requests[request_id]
        match = tracked.match
        if match is None:
            raise IntegrityError(
                where=f"request {request_id!r}",
                rule="the scheduler continues a session that was not matched",
                remedy="This is a fault of the engine, not of your request: please report it.",
            )
        retained = self.sessions.take(match.session)
        state, hints = retained.state, tracked.hints
        rest = clip(hints.spans, match.tokens, tracked.request.num_prompt_tokens)
        state.begin_turn(
            hints.model_copy(update={"base": match.tokens, "spans": tuple(rest)}), tracked.request.num_prompt_tokens
        )
        state.tokens.relabel(clip(hints.spans, 0, match.tokens))
        tracked.state, tracked.match, tracked.continued_tokens = state, None, match.tokens
        tracked.clean_pages = retained.clean_pages
        return retained

    def _state_of(self, tracked: TrackedRequest) -> SessionState:
        """The request's state; a request that continues nothing begins anew here, at its first pages."""
        if tracked.state is None:
            own_id = tracked.home
            if tracked.retains:
                own_id, makes_way = self.sessions.slot_for(tracked.home)
                if makes_way is not None:
                    self.release([makes_way])
            tracked.state = self._new_state(tracked, own_id)
        return tracked.state

    def _new_state(self, tracked: TrackedRequest, session_id: SessionId) -> SessionState:
        state = SessionState(
            session_id,
            tracked.hints.agent,
            self.config,
            self.policy,
            ledger=self.ledger,
            draw_key=tracked.hints.session_id.key(),  # not the slot: the same hints draw the same numbers
        )
        state.begin_turn(tracked.hints, tracked.request.num_prompt_tokens)
        return state

    def release(self, sessions: Sequence[RetainedSession]) -> None:
        """Give up idle sessions that were taken from the store."""
        for session in sessions:
            self.free_blocks(session.blocks)
            session.state.close()

    def prefix_hit(self, request_id: str, hit_tokens: int) -> None:
        """A request starts on a cached prefix: these positions exist without having been computed here."""
        tracked = self._requests.get(request_id)
        if tracked is not None:
            self._state_of(tracked).on_computed(hit_tokens, 0)

    def retire(self, request_id: str) -> RetainedSession | None:
        """The request loses its row: what the session keeps if the request ended, None if the pages go.

        A request that is still tracked was preempted: it begins anew when it is resumed.
        """
        self._evicted_since_step.pop(request_id, None)
        retained = self._retiring.pop(request_id, None)
        tracked = self._requests.get(request_id)
        if tracked is not None and tracked.state is not None:
            self.preemptions += 1
            tracked.clean_pages = None
            tracked.state.reset_cache()
        return retained

    def finish(self, request_id: str) -> dict[str, Any] | None:
        """End a request: its retention summary as plain data; None if it carried no hints."""
        self._evicted_since_step.pop(request_id, None)
        tracked = self._requests.pop(request_id, None)
        if tracked is None:
            return None
        self._holders.pop(tracked.home, None)
        state = tracked.state or self._new_state(tracked, tracked.home)  # it may never have been scheduled
        summary = summarise(tracked, state, self.page_size_tokens)
        self._summaries[request_id] = summary
        if len(self._summaries) > MAX_SUMMARIES:
            self._summaries.popitem(last=False)
        computed = state.tokens.computed_tokens
        if tracked.retains and computed:
            token_ids = np.asarray(tracked.request.all_token_ids[:computed], dtype=np.int64)
            self._retiring[request_id] = RetainedSession(tracked.home, state, token_ids, tracked.clean_pages, 0)
        elif tracked.state is not None:
            state.close()
        return asdict(summary)

    # ---- asked by the cache manager

    def pages_to_evict(
        self, request_id: str, held_pages: Sequence[int], table_pages: int, processed_tokens: int
    ) -> tuple[int, ...]:
        """Plan and book what the request must give up before its next pages are allocated.

        While prefilling it is brought down to its budget before each chunk; when only one token is left to
        compute, also the page of that token must fit. When it has ended and its session lives on, it leaves
        with no more than its budget.

        Args:
            request_id: the request about to be scheduled, or ended.
            held_pages: logical pages that its row holds, ascending.
            table_pages: length of its row, holes included.
            processed_tokens: tokens whose keys and values are complete.

        Returns:
            Logical pages, each booked in the ledger; the caller frees them.
        """
        tracked = self._requests.get(request_id)
        if tracked is None or tracked.budget_pages is None:
            return ()
        needed_pages = 0
        if tracked.request.is_finished():
            if not tracked.retains:
                return ()
        elif tracked.is_decoding(processed_tokens):
            needed_pages = max(processed_tokens // self.page_size_tokens + 1 - table_pages, 0)
        state = self._state_of(tracked)
        plan = state.plan(processed_tokens, held_pages, needed_pages)
        if plan.fault is not None:
            self.bypasses["policy_fault"] += 1
            logger.error("request %s: %s", request_id, plan.fault)
        tracked.shortfall_pages = max(tracked.shortfall_pages, plan.shortfall_pages)
        if not plan.pages:
            return ()
        self._refuse_pinned(state, plan.pages)
        for entry in state.apply(plan, request_id=request_id):
            tracked.freed_by_region[entry.region] += 1
        if tracked.clean_pages is None:
            tracked.clean_pages = processed_tokens // self.page_size_tokens
        self._evicted_since_step.setdefault(request_id, []).extend(plan.pages)
        return plan.pages

    def allocated(self, request_id: str, held_pages: Sequence[int]) -> None:
        """Book what the request's row holds after an allocation."""
        tracked = self._requests.get(request_id)
        if tracked is not None:
            self._state_of(tracked).note_held(held_pages)
            tracked.note_peak(len(held_pages))

    def matched_row_pages(self, request_id: str) -> int:
        """Length of the row that the request would take over from an idle session; 0: none."""
        tracked = self._requests.get(request_id)
        if tracked is None or tracked.match is None:
            return 0
        return -(-tracked.match.tokens // self.page_size_tokens)

    def park_oldest(self, request_id: str) -> bool:
        """Give up the least recently used idle session for a request that needs room; False: there is none."""
        tracked = self._requests.get(request_id)
        spared = tracked.match.session if tracked is not None and tracked.match is not None else None
        oldest = self.sessions.oldest(spared)
        if oldest is None:
            return False
        self.parked_sessions += 1
        logger.info("session %s is parked: its pages are needed", oldest.state.key)
        self.release([oldest])
        return True

    def admission_cap_pages(self, request_id: str) -> int | None:
        """Most pages that the request can hold at once; None: it has no budget."""
        tracked = self._requests.get(request_id)
        if tracked is None or tracked.budget_pages is None:
            return None
        return tracked.budget_pages + self.chunk_pages + 1

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
        self.release(self.sessions.expired())
        evicted, self._evicted_since_step = self._evicted_since_step, {}
        observe = {}
        for request_id, tokens in scheduled_tokens.items():
            tracked = self._requests.get(request_id)
            if tracked is None:
                continue
            computed = tracked.request.num_computed_tokens + tokens
            self._state_of(tracked).on_computed(tokens, int(computed >= tracked.request.num_tokens))
            if self.policy.uses_attention and (queries := tracked.queries_to_observe(tokens, self.config)):
                observe[request_id] = queries
        return evicted, observe

    def observe(self, request_id: str, token_index: np.ndarray, mass: np.ndarray) -> None:
        """Take in measured attention; see `Observation`. A malformed one is counted, never raised."""
        tracked = self._requests.get(request_id)
        if tracked is None or tracked.state is None:
            return  # it ended, or was preempted, in the very step that measured it
        try:
            tracked.state.observe(
                Observation(
                    token_index, mass, represented_queries=tracked.represented_queries, decode=tracked.observed_decode
                )
            )
        except MemDecayError as error:
            self.bypasses[error.code] += 1
            logger.error("request %s: %s", request_id, error)

    # ---- sessions and looking inside

    def close_sessions(self, tenant: str | None = None, thread_id: str | None = None) -> int:
        """Give up idle sessions, and do not keep running ones, of a tenant and thread (None: any).

        Returns:
            How many idle sessions were given up.
        """

        def is_meant(home: SessionId) -> bool:
            return tenant in (None, home.tenant) and thread_id in (None, home.thread_id)

        for tracked in self._requests.values():
            if is_meant(tracked.home):
                tracked.retains = False
        closed = [self.sessions.take(session) for session in self.sessions if is_meant(session.home)]
        self.release(closed)
        return len(closed)

    def take_summary(self, request_id: str) -> RetentionSummary | None:
        """The retention summary of an ended request, once; also of one that was aborted or met a stop string."""
        return self._summaries.pop(request_id, None)

    def ledger_copy(self) -> Ledger:
        """The ledger as it is now."""
        return self.ledger.copy()

    def check_integrity(self, held_by_request: Mapping[str, Sequence[int]]) -> None:
        """Check the ledger against the rows that the cache manager and the idle sessions really hold.

        Raises:
            LedgerError: they differ, a page was freed twice, or a pinned page was freed.
        """
        held = {session.state.key: session.held_pages for session in self.sessions}
        for request_id, tracked in self._requests.items():
            if tracked.state is not None:
                held[tracked.state.key] = list(held_by_request.get(request_id, ()))
        self.ledger.check_integrity(held)

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
