"""Whose turn each request is: which session it belongs to, what it continues, and what remains of it.

    start -> matched_tokens -> continue_session | a new state -> ... -> finish -> retire -> an idle session

vLLM's request ids on one side, the core's sessions on the other. Nothing here touches a block or a tensor, and
nothing here may raise on a user's input, for an exception in the scheduler ends the engine: what cannot be served
by region is served without, counted and logged.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
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
from memdecay_agents.policies import get_policy
from memdecay_agents.session_state import SessionState
from memdecay_agents.sessions import SessionId
from memdecay_agents.spans import Span, clip

logger = logging.getLogger(__name__)

MAX_SUMMARIES = 1024
"""Summaries of ended requests that nobody has asked for yet."""


class SessionTurns:
    """Requests and their sessions in one engine. Owned by the scheduler's thread.

    Args:
        settings: regions, policy, budgets; whether and how long sessions are kept.
        page_size_tokens: the block size of the engine's cache.
    """

    def __init__(self, settings: EngineSettings, page_size_tokens: int) -> None:
        self.config = settings.config
        self.page_size_tokens = page_size_tokens
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
        if tracked is None:
            return 0
        tracked.match = None  # an earlier attempt's session may be gone by now
        if tracked.state is not None or not tracked.retains or request.skip_reading_prefix_cache:
            return 0  # vLLM ignores an answer to a request that reads no cache: it begins anew
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
        tracked.clean_pages = retained.clean_pages_at(match.tokens, self.page_size_tokens)
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
