"""Whose turn each request is: which session it belongs to, what it continues, and what remains of it.

    start -> matched_tokens -> continue_session | a new state -> ... -> finish -> retire -> an idle session

vLLM's request ids on one side, the core's sessions on the other. Nothing here touches a block or a tensor, and
nothing here may raise on a user's input, for an exception in the scheduler ends the engine: what cannot be served
by region is served without, counted and logged.
"""

from __future__ import annotations

import itertools
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from memdecay_adapters.engine.agent_tallies import AgentTallies
from memdecay_adapters.engine.block_rows import Block
from memdecay_adapters.engine.events import (
    BYPASSES,
    CONTINUED_TOKENS,
    DIVERGENCES,
    PREEMPTIONS,
    TURNS,
    CounterSpec,
)
from memdecay_adapters.engine.live_tallies import LiveTallies
from memdecay_adapters.engine.request_admission import NO_AGENT, RequestAdmission
from memdecay_adapters.engine.results import RetentionSummary
from memdecay_adapters.engine.session_store import RetainedSession, SessionStore, common_prefix
from memdecay_adapters.engine.settings import EngineSettings
from memdecay_adapters.engine.tracked_request import Divergence, Request, TrackedRequest, summarise
from memdecay_agents.budgets import must_stay_pages
from memdecay_agents.errors import IntegrityError, MemDecayError, SpanError
from memdecay_agents.hints import RequestHints
from memdecay_agents.ledger import Ledger
from memdecay_agents.session_state import SessionState
from memdecay_agents.sessions import SessionId
from memdecay_agents.spans import Span, clip

if TYPE_CHECKING:
    from memdecay_adapters.engine.tier.book import TierBook

MAX_SUMMARIES = 1024
"""Summaries of ended requests that nobody has asked for yet."""


class SessionTurns(RequestAdmission):
    """Requests and their sessions in one engine. Owned by the scheduler's thread.

    Args:
        settings: regions, policy, budgets; whether and how long sessions are kept.
        page_size_tokens: the block size of the engine's cache.
        chunk_tokens: most tokens of one engine step.
        pool_pages: usable pages of the pool.
    """

    def __init__(self, settings: EngineSettings, page_size_tokens: int, chunk_tokens: int, pool_pages: int) -> None:
        super().__init__(settings.config, page_size_tokens, chunk_tokens, pool_pages)
        self.ledger = Ledger()
        self.sessions = SessionStore(page_size_tokens, settings.session_idle_seconds, settings.max_idle_sessions)
        self.agents = AgentTallies()
        self.live = LiveTallies()
        self.free_blocks: Callable[[Sequence[Block]], None] = lambda blocks: None
        """Gives blocks back to the pool; bound to the cache manager."""
        self.tier: TierBook | None = None
        """The host tier's book, where there is one."""
        self._keep_sessions = settings.keep_sessions
        self._retiring: dict[str, RetainedSession] = {}
        self._summaries: OrderedDict[str, RetentionSummary] = OrderedDict()
        self._holders: dict[SessionId, str] = {}
        self._evicted_since_step: dict[str, list[int]] = {}
        self._restored_since_step: dict[str, dict[int, int]] = {}
        self._numbers = itertools.count()

    def start(self, request: Request) -> None:
        """Read a request's hints; never raises on what they say."""
        try:
            hints = self._hints_of(request)
            if hints is not None and not hints.spans:  # a client without our templates names a session or a budget
                hints = hints.model_copy(update={"spans": (Span(hints.base, request.num_prompt_tokens, "user"),)})
            if hints is not None:
                hints.check(request.num_prompt_tokens, self.config)
            if hints is not None and hints.base:
                raise SpanError(
                    where=hints.where,
                    rule=f"the spans begin at token {hints.base}, and this engine is sent whole prompts",
                    remedy="Send base 0 with spans for the whole prompt; what a session holds is found here.",
                )
        except MemDecayError as error:
            self.events.note(BYPASSES, error.code, level=logging.WARNING, request=request.request_id, detail=error)
            hints = self._default_hints(request)  # a broken message does not lift the default budget
        if hints is None:
            self._plain[request.request_id] = (request, next(self._numbers))
            return
        home = hints.session_id
        # No thread, or the session is held by a request that still runs: a session of this one turn.
        alone = not home.thread_id or home in self._holders
        if alone:
            home = home._replace(branch=f"{home.branch}~{request.request_id}")
        budget = hints.agent_budget(self.config) if self.policy.evicts else None
        self._holders[home] = request.request_id
        self._requests[request.request_id] = TrackedRequest(
            request,
            hints,
            home,
            retains=self._keep_sessions and not alone,
            budget=budget,
            number=next(self._numbers),
            must_stay_pages=must_stay_pages(hints, request.num_prompt_tokens, request.max_tokens, self.config),
        )

    def _hints_of(self, request: Request) -> RequestHints | None:
        extra_args = getattr(request.sampling_params, "extra_args", None)
        hints = RequestHints.from_extra_args(extra_args)
        if hints is None and isinstance(over_http := (extra_args or {}).get("kv_transfer_params"), Mapping):
            hints = RequestHints.from_extra_args(over_http)  # a field of a server's requests: any JSON goes there
        return self._default_hints(request) if hints is None else hints

    def _default_hints(self, request: Request) -> RequestHints | None:
        """A request that names no regions still keeps to the default budget, as one user span; None: there is none."""
        if self.config.budget_of("") is None:
            return None
        return RequestHints(spans=(Span(0, request.num_prompt_tokens, "user"),))

    def matched_tokens(self, request: Request, cached_tokens: int) -> int | None:
        """Tokens beyond a prefix-cache hit that an idle session of the request would save; changes no session.

        A session that reaches as far as the hit is continued too: it knows what attention said of its tokens.

        Args:
            request: not yet scheduled.
            cached_tokens: length of the prefix-cache hit.

        Returns:
            None: the request has to wait, for the guarantees of the running ones fill the pool.
        """
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            return 0 if self.admits_plain(request.request_id) else None
        tracked.match = tracked.replaces = None  # an earlier attempt's session may be gone by now
        if not self.admits(tracked):
            return None
        if tracked.state is not None or not tracked.retains or request.skip_reading_prefix_cache:
            return 0  # vLLM ignores an answer to a request that reads no cache: it begins anew
        least = min(tracked.hints.spans[0].end, request.num_prompt_tokens - 1)
        match = self.sessions.match(tracked.home, request.prompt_token_ids, least)
        if match is None:
            return 0
        if match.edits_prompt and tracked.hints.rewind == "recompute":
            tracked.replaces = match.session
            return 0
        tracked.match = match if match.tokens >= cached_tokens else None
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
        if match.diverges:
            self._note_divergence(tracked, match.session, match.shared, "rewound")
        retained = self.sessions.take(match.session)
        state, hints = retained.state, tracked.hints
        rest = clip(hints.spans, match.tokens, tracked.request.num_prompt_tokens)
        if self.tier is not None:
            self.tier.rewind(state, match.tokens)
        state.begin_turn(
            hints.model_copy(update={"base": match.tokens, "spans": tuple(rest)}), tracked.request.num_prompt_tokens
        )
        state.tokens.relabel(clip(hints.spans, 0, match.tokens))
        tracked.state, tracked.match, tracked.continued_tokens = state, None, match.tokens
        self.events.count(CONTINUED_TOKENS, state.agent, by=match.tokens)
        tracked.clean_pages = retained.clean_pages_at(match.tokens, self.page_size_tokens)
        return retained

    def _note_divergence(self, tracked: TrackedRequest, session: RetainedSession, token: int, outcome: str) -> None:
        tokens = session.state.tokens
        region = tokens.table.names[int(tokens.region[token])]
        tracked.divergence = Divergence(token, region, len(session.token_ids) - token)
        self.events.note(
            DIVERGENCES,
            tracked.hints.agent,
            region,
            outcome,
            request=tracked.request.request_id,
            session=session.state.key,
            token=token,
            dropped_tokens=tracked.divergence.dropped_tokens,
        )

    def _state_of(self, tracked: TrackedRequest) -> SessionState:
        """The request's state; a request that continues nothing begins anew here, at its first pages."""
        state = tracked.state
        if state is None:
            own_id = tracked.home
            if tracked.replaces is not None and tracked.replaces in self.sessions:
                self._drop_edited(tracked, tracked.replaces)
            elif tracked.retains:
                self._note_unrelated(tracked)
            if tracked.retains:
                own_id, makes_way = self.sessions.slot_for(tracked.home)
                if makes_way is not None:
                    self.release([makes_way])
            state = tracked.state = self._new_state(tracked, own_id)
        return state

    def _drop_edited(self, tracked: TrackedRequest, session: RetainedSession) -> None:
        """The history was edited and is to be computed anew: the session that holds the old one goes."""
        shared = common_prefix(session.token_ids, np.asarray(tracked.request.prompt_token_ids, dtype=np.int64))
        self._note_divergence(tracked, session, shared, "recomputed")
        self.release([self.sessions.take(session)])
        tracked.replaces = None

    def _note_unrelated(self, tracked: TrackedRequest) -> None:
        """The session's slots hold other prompts: say where the newest of them differs."""
        slots = self.sessions.of(tracked.home)
        if not slots:
            return
        ids = np.asarray(tracked.request.prompt_token_ids, dtype=np.int64)
        shared = common_prefix(slots[-1].token_ids, ids)
        if shared < min(len(slots[-1].token_ids), len(ids)):
            self._note_divergence(tracked, slots[-1], shared, "unrelated")

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
            self._close(session.state)

    def _close(self, state: SessionState) -> None:
        if self.tier is not None:
            self.tier.forget(state)
        state.close()

    def give_up(self, sessions: Sequence[RetainedSession], event: CounterSpec) -> None:
        """Give up idle sessions that were taken from the store, and say why."""
        for session in sessions:
            self.events.note(event, session.state.agent, session=session.state.key, pages=len(session.held_pages))
        self.release(sessions)

    def prefix_hit(self, request_id: str, hit_tokens: int) -> None:
        """A request starts on a cached prefix: these positions exist without having been computed here."""
        tracked = self._requests.get(request_id)
        if tracked is not None:
            state = self._state_of(tracked)
            state.on_computed(hit_tokens, 0)
            state.learn(tracked.request.all_token_ids)

    def retire(self, request_id: str) -> RetainedSession | None:
        """The request loses its row: what the session keeps if the request ended, None if the pages go.

        A request that is still tracked was preempted: it begins anew when it is resumed.
        """
        self._forget_moves(request_id)
        retained = self._retiring.pop(request_id, None)
        if request_id in self._plain:
            self.events.note(PREEMPTIONS, NO_AGENT, level=logging.WARNING, request=request_id)
            self.admission.release(request_id)
        tracked = self._requests.get(request_id)
        if tracked is not None and tracked.state is not None:
            self.events.note(PREEMPTIONS, tracked.hints.agent, level=logging.WARNING, request=request_id)
            self.admission.release(request_id)
            tracked.clean_pages, tracked.in_worker, tracked.settled_pages = None, False, 0
            tracked.recall.rerun_until = 0
            if self.tier is not None:
                self.tier.catalogue.drop(tracked.state.key)
            tracked.state.reset_cache()
        return retained

    def _forget_moves(self, request_id: str) -> None:
        self._evicted_since_step.pop(request_id, None)
        self._restored_since_step.pop(request_id, None)

    def finish(self, request_id: str) -> dict[str, Any] | None:
        """End a request: its retention summary as plain data; None if it carried no hints."""
        self._forget_moves(request_id)
        if self._plain.pop(request_id, None) is not None:
            self.admission.release(request_id)
        tracked = self._requests.pop(request_id, None)
        if tracked is None:
            return None
        self.admission.release(request_id)
        self._holders.pop(tracked.home, None)
        never = tracked.home._replace(branch=f"{tracked.home.branch}~{request_id}")
        state = tracked.state or self._new_state(tracked, never)  # it may never have been scheduled
        if tracked.recall.rerun_until:  # ended while its prompt was computed again: the rest is of before
            state.rewind(tracked.request.num_computed_tokens)
        state.kept_pages = frozenset()
        summary = summarise(tracked, state, self.page_size_tokens)
        self._summaries[request_id] = summary
        self.events.count(TURNS, summary.agent)
        self.agents.add(summary)
        if len(self._summaries) > MAX_SUMMARIES:
            self._summaries.popitem(last=False)
        computed = state.tokens.computed_tokens
        if tracked.retains and computed:
            token_ids = np.asarray(tracked.request.all_token_ids[:computed], dtype=np.int64)
            self._retiring[request_id] = RetainedSession(
                tracked.home, state, token_ids, tracked.clean_pages, 0, tracked.request.num_prompt_tokens
            )
            if self.tier is not None and tracked.hints.needs_next is not None:
                self.tier.wish(state, tracked.hints.needs_next)
        elif tracked.state is not None:
            self._close(state)
        return summary.to_dict()

    def count_plain(self, request_id: str, tokens: int) -> None:
        """Count the tokens of a step of a request without hints: nobody's, but the engine's."""
        if (plain := self._plain.get(request_id)) is not None:
            request, _ = plain
            generated = int(request.num_computed_tokens + tokens >= request.num_tokens)
            self.live.step("", NO_AGENT, tokens, generated)

    def session_of(self, request_id: str) -> RetainedSession | None:
        """The idle session that the request is about to continue."""
        tracked = self._requests.get(request_id)
        return tracked.match.session if tracked is not None and tracked.match is not None else None

    def matched_row_pages(self, request_id: str) -> int:
        """Length of the row that the request would take over from an idle session; 0: none."""
        tracked = self._requests.get(request_id)
        if tracked is None or tracked.match is None:
            return 0
        return -(-tracked.match.tokens // self.page_size_tokens)

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

    def take_summary_of(self, is_meant: Callable[[str], bool]) -> RetentionSummary | None:
        """The same for the newest request whose id is meant."""
        found = next((request_id for request_id in reversed(self._summaries) if is_meant(request_id)), None)
        return None if found is None else self.take_summary(found)
