"""Which idle session is repaired, and the request that does it: the session's own history, its newest tokens again.

turn ends -> due: idle for long enough, something to repair -> request -> swaps bring everything back
          -> its newest tokens are computed again -> ends: the session leaves with its budget, as after any turn
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from memdecay_adapters.engine.controller import EvictionController
from memdecay_adapters.engine.session_store import RetainedSession
from memdecay_adapters.engine.tier.settings import Repair
from memdecay_agents.hints import RequestHints
from memdecay_agents.sessions import SessionId
from memdecay_agents.spans import Span, clip


class RepairRequest(NamedTuple):
    """What is to be submitted, for one token that nobody reads."""

    token_ids: list[int]
    hints: RequestHints


class Repairs:
    """The repairs of one embedded engine. Owned by the engine's thread, asked between two steps.

    Args:
        controller: knows the idle sessions, and has a tier.
        free_pages: free or reclaimable pages of the pool, now.
        repair: how much, and after how long.
    """

    def __init__(self, controller: EvictionController, free_pages: Callable[[], int], repair: Repair) -> None:
        self._controller = controller
        self._free_pages = free_pages
        self.repair = repair

    def next_due(self) -> tuple[RepairRequest | None, float | None]:
        """While nothing runs: what to do now, and where there is nothing, after how many seconds to ask again.

        The session whose turn ended last comes first: its tool is the likeliest to be running still.
        """
        sessions, wait = list(self._controller.sessions), self.repair.idle_seconds
        if wait is None or not sessions:
            return None, None
        left = wait - self._controller.sessions.idle_seconds(sessions[-1])
        waiting = [session for session in sessions if not session.repair_tried and self._can(session)]
        if not waiting:
            return None, None
        if left > 0:
            return None, left
        waiting[-1].repair_tried = True  # whatever comes of it: it is not tried again before its next turn
        return self.request(waiting[-1]), None

    def of(self, tenant: str, thread_id: str, agent: str | None, last_tokens: int | None) -> Iterator[RepairRequest]:
        """The same at once, for the idle sessions of a thread that can be repaired.

        Args:
            tenant: whose.
            thread_id: of this thread.
            agent: of this agent's path; None: of all.
            last_tokens: most tokens that are computed again; None: as chosen at start.
        """

        def is_meant(home: SessionId) -> bool:
            return (home.tenant, home.thread_id) == (tenant, thread_id) and agent in (None, home.agent_path)

        for session in self._controller.sessions:
            if is_meant(session.home) and self._can(session, last_tokens):
                yield self.request(session, last_tokens)

    def request(self, session: RetainedSession, last_tokens: int | None = None) -> RepairRequest:
        """The session's history as a prompt, every token in the region that it has; see `of`."""
        last = session.hints or RequestHints()
        n_tokens = len(session.token_ids)
        spans = tuple(clip(last.spans, 0, n_tokens))  # a turn that was aborted has computed less than its prompt
        if n_tokens > session.prompt_tokens:
            spans = (*spans, Span(session.prompt_tokens, n_tokens, last.output_region))
        hints = last.model_copy(
            update={"spans": spans, "messages": (), "recall": None, "needs_next": None,
                    "repair_tokens": last_tokens or self.repair.last_tokens}
        )  # fmt: skip
        return RepairRequest(session.token_ids.tolist(), hints)

    def _can(self, session: RetainedSession, last_tokens: int | None = None) -> bool:
        """Whether there is something to compute again, and room for everything that left."""
        page, n_tokens = self._controller.page_size_tokens, len(session.token_ids)
        first, tier = session.repair_from(last_tokens or self.repair.last_tokens, page), self._controller.tier
        if first >= n_tokens or tier is None or session.hints is None or self._controller.is_held(session.home):
            return False
        away = sum(one.page * page < first for one in tier.catalogue.away(session.state.key))
        return away + n_tokens // page + 2 - first // page <= self._free_pages()
