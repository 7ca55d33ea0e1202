"""One session's memory: its tokens, the pages it holds, its budget, and the plans that keep it within.

The engine's loop, in its own words:

    state.begin_turn(hints, n_prompt_tokens)
    each step:  plan = state.plan(processed_tokens, held_pages, new_pages)
                entries = state.apply(plan, request_id=...)         # and free plan.pages in the pool
                state.on_computed(n_new_positions, n_generated); state.learn(token_ids); state.observe(observation)
    preempted:  state.reset_cache()          ended: state.close()
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from memdecay_agents.agent_budgets import AgentBudget
from memdecay_agents.arrays import IndexArray
from memdecay_agents.booked_pages import BookedPages
from memdecay_agents.budgets import budget_pages
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import SpanError
from memdecay_agents.hints import RequestHints
from memdecay_agents.ledger import EvictionReason, Ledger, LedgerEntry
from memdecay_agents.observations import Observation
from memdecay_agents.pages import PageView, build_page_view
from memdecay_agents.policies.base import Policy
from memdecay_agents.selection import EvictionPlan, plan_eviction
from memdecay_agents.sessions import SessionId
from memdecay_agents.token_state import TokenState

MAX_REWINDS = 1000
"""Remembered of one session; beyond, the oldest go."""


class SessionState:
    """All that is known about one session. Not thread-safe: the engine's thread owns it.

    Args:
        session_id: whose memory this is.
        agent: name of the agent, for ledger and messages.
        config: shared by all sessions of an engine, unless the policy has another for this one.
        policy: shared by all sessions of an engine; it may name another for this one (`Policy.for_session`).
        ledger: where evictions are booked; by default one of its own.
        draw_key: what policies that draw numbers go by; by default the session's key.
    """

    def __init__(
        self,
        session_id: SessionId,
        agent: str,
        config: MemDecayConfig,
        policy: Policy,
        *,
        ledger: Ledger | None = None,
        draw_key: str | None = None,
    ) -> None:
        """Begin with no tokens and the configuration's budget for the agent."""
        self.session_id = session_id
        self.draw_key = session_id.key() if draw_key is None else draw_key
        self.key = session_id.key()
        self.agent = agent
        self.policy = policy.for_session(self.draw_key)
        self.config = config = config if self.policy is policy else self.policy.config
        self.ledger = Ledger() if ledger is None else ledger
        self.booked_before = self.ledger.summary(self.key).evicted
        """Evictions of earlier sessions of this key."""
        self.rewinds: deque[tuple[int, int, int]] = deque(maxlen=MAX_REWINDS)
        """Each time that computed tokens were dropped: evictions of this key until then, tokens that were computed, and
        those that remained; for pictures."""
        self.tokens = TokenState(config, self.policy.refresh_rule())
        self.budget: AgentBudget | None = config.budget_of(agent)
        self.share_pages: int | None = None
        """What the pool gives a session whose budget is a share of it; set by the engine."""
        self.turn = 0
        self.turns_begun = 0
        """Turns that this session took in, repeated ones included."""
        self.steps = 0
        """Engine steps that computed what the session holds, since it began or was preempted."""
        self.messages: tuple[tuple[int, int], ...] = ()
        """Tokens [first, past the last) of each message of the newest prompt; empty: not told."""
        self.peak_pages = 0
        """Most pages ever held after a plan was made, the step's new ones included."""
        self.budget_bound = False
        """Whether the budget ever asked for an eviction: a budget that never bound changed nothing."""
        self.reserve_pages = 0
        """Pages of the budget that plans leave free where unpinned pages can make them so; set by the engine."""
        self.recent_share = 0.0
        """Of the pages that stay, the newest that go after all others; set by an engine that can bring others back."""
        self.kept_pages: frozenset[int] = frozenset()
        """Pages that came back, or were asked for, for this turn: protected until the next one begins."""
        self.sound_tokens = 0
        """Up to here the newest tokens were computed with every page of the session there: see `recompute_from`."""
        self._view: PageView | None = None

    @property
    def budget_pages(self) -> int | None:
        """Whole pages of the budget now; None: no limit, also under a policy that never evicts."""
        if self.budget is None or not self.policy.evicts:
            return None
        page = self.config.page_size_tokens
        share_tokens = None if self.share_pages is None else self.share_pages * page
        return budget_pages(self.budget.limit(self.tokens.n_tokens, share_tokens), page)

    @property
    def guaranteed_pages(self) -> int | None:
        """Whole pages that pool pressure never takes; None: there is no budget, and nothing may be taken."""
        if self.budget is None or not self.policy.evicts:
            return None
        return budget_pages(self.budget.guarantee, self.config.page_size_tokens)

    @property
    def held_pages(self) -> tuple[int, ...]:
        """Logical pages held, ascending."""
        return tuple(sorted(self.ledger.held_pages(self.key)))

    # --- life -----------------------------------------------------------------------------------

    def begin_turn(self, hints: RequestHints, n_prompt_tokens: int) -> None:
        """Take in a turn's hints: rewind to its base, register its tokens, set pins, budget and turn.

        Raises:
            SpanError: the spans do not fit the prompt, or ``base`` lies beyond what the session has.
            RegionError: a pin or the output region is unknown. In both cases nothing changed.
        """
        hints.check(n_prompt_tokens, self.config)
        if hints.base > self.tokens.n_tokens:
            raise SpanError(
                where=hints.where,
                rule=f"base {hints.base} is beyond the {self.tokens.n_tokens} tokens that this session has",
                remedy="Send base 0 with spans for the whole prompt: the session's state is gone.",
            )
        self.rewind(hints.base)
        self.turn = self.turns_begun if hints.turn is None else hints.turn
        self.turns_begun += 1
        self.agent = hints.agent or self.agent
        self.budget = hints.agent_budget(self.config)
        self.share_pages = None
        self.messages = hints.messages
        self.kept_pages = frozenset()
        self.tokens.output_region = hints.output_region
        self.tokens.extend(n_prompt_tokens - hints.base, spans=hints.spans)
        self.tokens.set_pins(hints.pins)
        self.tokens.on_turn_start()

    def rewind(self, n_tokens: int) -> None:
        """Go back to the first ``n_tokens`` tokens; pages wholly beyond are no longer held."""
        if n_tokens < self.tokens.n_tokens:
            self._note_rewind(n_tokens)
            self.tokens.truncate(n_tokens)
            self.sound_tokens = min(self.sound_tokens, n_tokens)
            self.ledger.rewound(self.key, -(-n_tokens // self.config.page_size_tokens))

    def recompute_from(self, n_tokens: int) -> None:
        """Pages wholly beyond ``n_tokens`` tokens are given back, to be computed again.

        No turn begins and no clock ticks: regions, clocks and attention of these tokens stay.
        """
        self._note_rewind(n_tokens)
        self.ledger.rewound(self.key, -(-n_tokens // self.config.page_size_tokens))

    def on_computed(self, n_new_positions: int, n_generated: int) -> None:
        """The engine computed KV for the next positions and sampled ``n_generated`` tokens."""
        self.steps += 1
        self.tokens.on_computed(n_new_positions, n_generated)

    def on_decoded(self, n_steps: int) -> None:
        """So many decode steps: the same as `on_computed` with (1, 1) as often."""
        self.steps += n_steps
        self.tokens.on_decoded(n_steps)

    def learn(self, token_ids: Sequence[int]) -> None:
        """Take in the ids of all computed tokens, where the policy reads them; known ones are not read again.

        Args:
            token_ids: at least as many as are computed, from the session's first token on.

        Raises:
            ObservationError: an id below 0; nothing changed.
        """
        if self.policy.uses_token_ids:
            self.tokens.learn(token_ids)

    def observe(self, observation: Observation) -> None:
        """Take in one measurement of attention.

        Raises:
            ObservationError: it names tokens that do not exist; nothing changed.
        """
        self.tokens.observe(observation)

    def reset_cache(self) -> None:
        """The session lost all its pages (preemption): clocks, attention and pages start again."""
        self._note_rewind(0)
        self.tokens.reset_cache()
        self.steps = self.sound_tokens = 0
        self.close()

    def close(self) -> None:
        """The session gave back all its pages."""
        self.ledger.closed(self.key)
        self._view = None

    def _note_rewind(self, n_tokens: int) -> None:
        computed = self.tokens.computed_tokens
        if computed > n_tokens:
            self.rewinds.append((self.ledger.summary(self.key).evicted, computed, n_tokens))

    # --- eviction -------------------------------------------------------------------------------

    def note_held(self, held_pages: IndexArray | Sequence[int]) -> None:
        """Book pages that the engine holds and the ledger does not know yet."""
        known = self.ledger.held_pages(self.key)
        pages = held_pages.tolist() if isinstance(held_pages, np.ndarray) else held_pages
        if new := [page for page in pages if page not in known]:
            self.ledger.allocated(self.key, new)

    def view(
        self, processed_tokens: int, held_pages: IndexArray | Sequence[int], newest_tokens: int | None = None
    ) -> PageView:
        """The held pages as the policy sees them; see ``build_page_view``."""
        view = build_page_view(
            self.tokens,
            held_pages,
            processed_tokens,
            self.config,
            session_key=self.draw_key,
            newest_tokens=newest_tokens,
        )
        if not self.kept_pages:
            return view
        kept = np.isin(view.page_index, np.fromiter(self.kept_pages, dtype=np.int64))
        return replace(view, protected=view.protected | kept, evictable=view.evictable & ~kept)

    def plan(
        self,
        processed_tokens: int,
        held_pages: IndexArray | Sequence[int],
        new_pages: int = 0,
        *,
        pages_to_free: int | None = None,
        allow_partial: bool = True,
        newest_tokens: int | None = None,
        leaving_pages: int | None = None,
    ) -> EvictionPlan:
        """Plan what to free so that held and new pages fit the budget; never raises on a shortfall.

        ``reserve_pages`` of the budget are left free, as far as there are pages that may go.

        Args:
            processed_tokens: tokens whose KV is computed; pages beyond are not candidates.
            held_pages: logical pages that the engine's block table holds now.
            new_pages: pages that this step is about to allocate.
            pages_to_free: free so many instead, whatever the budget (pool pressure).
            allow_partial: on a shortfall free what may go; False: free nothing.
            newest_tokens: where the recent window ends; None: at ``processed_tokens``.
            leaving_pages: where only the head of the plan will be freed, how many pages; None: all of it.
        """
        self.note_held(held_pages)
        budget = self.budget_pages
        n_held = len(held_pages)
        wanted = pages_to_free
        if wanted is None:
            wanted = 0 if budget is None else n_held + new_pages - budget
            self.budget_bound |= wanted > 0
            if budget is not None and self.reserve_pages and wanted + self.reserve_pages > 0:
                may_go = int(self.view(processed_tokens, held_pages, newest_tokens).evictable.sum())
                pages_to_free = wanted = max(wanted, min(wanted + self.reserve_pages, may_go))
        if wanted <= 0:
            plan = EvictionPlan(held_before=n_held, held_after=n_held, new_pages=new_pages, budget_pages=budget)
        else:
            self._view = self.view(processed_tokens, held_pages, newest_tokens)
            plan = plan_eviction(
                self._view,
                self.policy,
                pages_to_free=pages_to_free,
                budget_pages=budget,
                new_pages=new_pages,
                allow_partial=allow_partial,
                recent_share=self.recent_share,
                leaving_pages=leaving_pages,
            )
        self.peak_pages = max(self.peak_pages, plan.held_after + new_pages)
        return plan

    def apply(
        self, plan: EvictionPlan, *, request_id: str = "", reason: EvictionReason = EvictionReason.over_budget
    ) -> list[LedgerEntry]:
        """Book the pages of the plan that ``plan`` returned last; the caller frees them.

        A page that is over budget and superseded goes for that reason, where the policy heeds it.

        Returns:
            One entry for each page, in the plan's order.
        """
        if not plan.pages or self._view is None:
            return []
        booked = BookedPages(self._view, plan)
        entries = []
        for position in range(len(plan.pages)):
            facts = booked.facts(position)
            demoted = facts["superseded"] and self.policy.heeds_superseded and self.config.superseded_factor < 1.0
            why = EvictionReason.superseded if demoted and reason is EvictionReason.over_budget else reason
            entry = LedgerEntry.booked(
                session=self.key, agent=self.agent, turn=self.turn, step=self.steps, request_id=request_id,
                reason=why, **facts,
            )  # fmt: skip
            self.ledger.evict(entry)
            entries.append(entry)
        return entries

    def restore(self, entries: Sequence[LedgerEntry]) -> None:
        """Book pages that came back from host memory; the caller has put them into the row.

        Args:
            entries: with the reason ``swapped_in``; of pages of this session that were evicted.
        """
        for entry in entries:
            self.ledger.restored(entry)
        self._view = None
