"""Whose turn each request is: which session it belongs to, and what it continues.

    start -> matched_tokens -> continue_session | a new state -> ... -> session_ends

vLLM's request ids on one side, the core's sessions on the other. Nothing here touches a block or a tensor, and
nothing here may raise on a user's input, for an exception in the scheduler ends the engine: what cannot be served
by region is served without, counted and logged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from memdecay_adapters.engine.events import (
    BYPASSES,
    CONTINUED_TOKENS,
    DIVERGENCES,
)
from memdecay_adapters.engine.request_admission import NO_AGENT
from memdecay_adapters.engine.session_ends import SessionEnds
from memdecay_adapters.engine.session_store import Match, RetainedSession, common_prefix
from memdecay_adapters.engine.tracked_request import Divergence, Request, TrackedRequest
from memdecay_agents.budgets import must_stay_pages
from memdecay_agents.errors import IntegrityError, MemDecayError, SpanError
from memdecay_agents.hints import RequestHints
from memdecay_agents.session_state import SessionState
from memdecay_agents.spans import Span, clip


class SessionTurns(SessionEnds):
    """Requests and their sessions in one engine. Owned by the scheduler's thread."""

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
        # No thread, or the session is held by a turn that still runs: a session of this one turn.
        holders = self._holders.get(home, [])
        waits_for = next((name for name in holders if self._requests[name].may_repair), "")
        alone = not home.thread_id or any(name != waits_for for name in holders)
        if alone:
            home = home._replace(branch=f"{home.branch}~{request.request_id}")
        budget = hints.agent_budget(self.config) if self.policy.evicts else None
        self._holders.setdefault(home, []).append(request.request_id)
        retains = self._keep_sessions and not alone
        self._requests[request.request_id] = TrackedRequest(
            request,
            hints,
            home,
            retains=retains,
            # one that went on generating would hold everything for as long as it liked
            may_repair=hints.repair_tokens is not None
            and retains
            and self.tier is not None
            and request.max_tokens == 1,
            waits_for=waits_for,
            budget=budget,
            number=next(self._numbers),
            must_stay_pages=must_stay_pages(hints, request.num_prompt_tokens, request.max_tokens, self.config),
        )

    def _asks_for_repair(self, hints: RequestHints, request: Request) -> bool:
        """One that went on generating would hold everything for as long as it liked: that is a turn."""
        return hints.repair_tokens is not None and self.tier is not None and request.max_tokens == 1

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
        if tracked.waits_for in self._requests or not self.admits(tracked):
            return None
        if tracked.state is not None or not tracked.retains or request.skip_reading_prefix_cache:
            return 0  # vLLM ignores an answer to a request that reads no cache: it begins anew
        least = min(tracked.hints.spans[0].end, request.num_prompt_tokens - 1)
        match = self.sessions.match(tracked.home, request.prompt_token_ids, least)
        if tracked.may_repair:
            match = self._match_to_repair(tracked, match, cached_tokens)
        if match is None:
            return 0
        if match.edits_prompt and tracked.hints.rewind == "recompute" and not tracked.may_repair:
            tracked.replaces = match.session
            return 0
        tracked.match = match if match.tokens >= cached_tokens else None
        return tracked.match.tokens - cached_tokens if tracked.match is not None else 0

    def _match_to_repair(self, tracked: TrackedRequest, match: Match | None, cached_tokens: int) -> Match | None:
        """Where a repair begins. A session that is not the prompt's is not repaired: then the request is a turn.

        Args:
            tracked: the repair.
            match: the session that it continues.
            cached_tokens: length of the prefix-cache hit; no repair begins within it.
        """
        asked = tracked.hints.repair_tokens
        if match is None or match.diverges or asked is None or tracked.request.num_prompt_tokens != match.shared:
            tracked.may_repair = False
            return match
        first = min(match.session.repair_from(asked, self.page_size_tokens), match.shared - 1)
        first = self.sessions.usable(match.session, first)
        tracked.recall.skips = cached_tokens > first
        return match._replace(tokens=max(first, cached_tokens))

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
        if self.tier is not None:
            self.tier.rewind(state, match.tokens)
        if tracked.may_repair:
            tracked.repaired, tracked.repairs = retained, True
            state.recompute_from(match.tokens)
            tracked.recall.decided, tracked.recall.rerun_until = True, tracked.request.num_prompt_tokens
        else:
            rest = clip(hints.spans, match.tokens, tracked.request.num_prompt_tokens)
            begun = hints.model_copy(update={"base": match.tokens, "spans": tuple(rest)})
            state.begin_turn(begun, tracked.request.num_prompt_tokens)
            state.tokens.relabel(clip(hints.spans, 0, match.tokens))
        tracked.state, tracked.match, tracked.continued_tokens = state, None, match.tokens
        if tracked.repaired is None:
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

    def prefix_hit(self, request_id: str, hit_tokens: int) -> None:
        """A request starts on a cached prefix: these positions exist without having been computed here."""
        tracked = self._requests.get(request_id)
        if tracked is not None:
            state = self._state_of(tracked)
            state.on_computed(hit_tokens, 0)
            state.learn(tracked.request.all_token_ids)

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
