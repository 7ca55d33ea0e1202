"""What remains of a request when it ends or loses its row: a session that lives on, its summary, or nothing.

    finish -> retire -> an idle session -> continued by a later turn, or given up

Nothing here touches a block or a tensor.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from memdecay_adapters.engine.agent_tallies import AgentTallies
from memdecay_adapters.engine.block_rows import Block
from memdecay_adapters.engine.events import PREEMPTIONS, TURNS, CounterSpec
from memdecay_adapters.engine.live_tallies import LiveTallies
from memdecay_adapters.engine.request_admission import NO_AGENT, RequestAdmission
from memdecay_adapters.engine.results import RetentionSummary
from memdecay_adapters.engine.session_store import RetainedSession, SessionStore
from memdecay_adapters.engine.settings import EngineSettings
from memdecay_adapters.engine.tracked_request import TrackedRequest, summarise
from memdecay_agents.ledger import Ledger
from memdecay_agents.session_state import SessionState
from memdecay_agents.sessions import SessionId

if TYPE_CHECKING:
    from memdecay_adapters.engine.tier.book import TierBook

MAX_SUMMARIES = 1024
"""Summaries of ended requests that nobody has asked for yet."""


class SessionEnds(RequestAdmission):
    """The sessions of one engine, idle and running. Owned by the scheduler's thread.

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
        self._holders: dict[SessionId, list[str]] = {}
        """Requests of each session, in the order in which they came; of several the first one may be its repair."""
        self._evicted_since_step: dict[str, list[int]] = {}
        self._restored_since_step: dict[str, dict[int, int]] = {}

    def finish(self, request_id: str) -> dict[str, Any] | None:
        """End a request: its retention summary as plain data; None if it carried no hints."""
        self._forget_moves(request_id)
        if self._plain.pop(request_id, None) is not None:
            self.admission.release(request_id)
        tracked = self._requests.pop(request_id, None)
        if tracked is None:
            return None
        self.admission.release(request_id)
        if others := [name for name in self._holders.pop(tracked.home, []) if name != request_id]:
            self._holders[tracked.home] = others
        never = tracked.home._replace(branch=f"{tracked.home.branch}~{request_id}")
        state = tracked.state or self._new_state(tracked, never)  # it may never have been scheduled
        if tracked.recall.rerun_until:  # ended while its prompt was computed again: the rest is of before
            state.rewind(tracked.request.num_computed_tokens)
        state.kept_pages = frozenset()
        summary = summarise(tracked, state, self.page_size_tokens)
        self._summaries[request_id] = summary
        if tracked.repaired is None:
            self.events.count(TURNS, summary.agent)
            self.agents.add(summary)
        if len(self._summaries) > MAX_SUMMARIES:
            self._summaries.popitem(last=False)
        computed = state.tokens.computed_tokens
        if tracked.retains and computed:
            token_ids = np.asarray(tracked.request.all_token_ids[:computed], dtype=np.int64)
            before = tracked.repaired
            self._retiring[request_id] = RetainedSession(
                tracked.home,
                state,
                token_ids,
                tracked.clean_pages,
                0,
                tracked.request.num_prompt_tokens if before is None else before.prompt_tokens,
                hints=tracked.hints if before is None else before.hints,
                repair_tried=before is not None,
                idle_since_seconds=0.0 if before is None else before.idle_since_seconds,
            )
            if self.tier is not None and tracked.hints.needs_next is not None:
                self.tier.wish(state, tracked.hints.needs_next)
        elif tracked.state is not None:
            self._close(state)
        return summary.to_dict()

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
            tracked.recall.rerun_until, tracked.repairs = 0, False  # all of it is computed again
            if self.tier is not None:
                self.tier.catalogue.drop(tracked.state.key)
            tracked.state.reset_cache()
        return retained

    def is_held(self, home: SessionId) -> bool:
        """Whether a request of this session runs or waits."""
        return home in self._holders

    def _forget_moves(self, request_id: str) -> None:
        self._evicted_since_step.pop(request_id, None)
        self._restored_since_step.pop(request_id, None)

    def _new_state(self, tracked: TrackedRequest, session_id: SessionId) -> SessionState:
        state = SessionState(
            session_id,
            tracked.hints.agent,
            self.config,
            self.policy,
            ledger=self.ledger,
            draw_key=tracked.hints.session_id.key(),  # not the slot: the same hints draw the same numbers
        )
        recall = None if self.tier is None else self.tier.tier.recall
        state.recent_share = 0.0 if recall is None else recall.recent_share
        state.begin_turn(tracked.hints, tracked.request.num_prompt_tokens)
        return state

    def take_summary(self, request_id: str) -> RetentionSummary | None:
        """The retention summary of an ended request, once; also of one that was aborted or met a stop string."""
        return self._summaries.pop(request_id, None)

    def take_summary_of(self, is_meant: Callable[[str], bool]) -> RetentionSummary | None:
        """The same for the newest request whose id is meant."""
        found = next((request_id for request_id in reversed(self._summaries) if is_meant(request_id)), None)
        return None if found is None else self.take_summary(found)

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

    def give_up(self, sessions: Sequence[RetainedSession], event: CounterSpec) -> None:
        """Give up idle sessions that were taken from the store, and say why."""
        for session in sessions:
            self.events.note(event, session.state.agent, session=session.state.key, pages=len(session.held_pages))
        self.release(sessions)

    def release(self, sessions: Sequence[RetainedSession]) -> None:
        """Give up idle sessions that were taken from the store."""
        for session in sessions:
            self.free_blocks(session.blocks)
            self._close(session.state)

    def _close(self, state: SessionState) -> None:
        if self.tier is not None:
            self.tier.forget(state)
        state.close()
