"""One request that carries hints, between vLLM's scheduler and its session."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from memdecay_adapters.engine.results import RetentionSummary
from memdecay_adapters.engine.session_store import Match, RetainedSession
from memdecay_adapters.engine.tier.turn import TurnRecall
from memdecay_agents.agent_budgets import AgentBudget
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.explaining import message_retention
from memdecay_agents.hints import RequestHints
from memdecay_agents.pages import build_page_view
from memdecay_agents.session_state import SessionState
from memdecay_agents.sessions import SessionId


class Request(Protocol):
    """The part of vLLM's scheduler request that is read."""

    request_id: str
    sampling_params: Any
    num_prompt_tokens: int
    num_computed_tokens: int
    max_tokens: int
    prompt_token_ids: Any
    all_token_ids: Any
    skip_reading_prefix_cache: bool

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens so far."""

    def is_finished(self) -> bool:
        """Whether it has ended."""


class Divergence(NamedTuple):
    """A prompt that is not an extension of the session's history."""

    token: int
    """Index of the first token that differs."""
    region: str
    """Region that this token of the history had."""
    dropped_tokens: int
    """Tokens of the history from there on."""


@dataclass
class TrackedRequest:
    """What the controller remembers of a request beside its session."""

    request: Request
    hints: RequestHints
    home: SessionId
    """The session that the request belongs to; its state's id may name another slot of it."""
    retains: bool
    """Whether its pages are kept for the session's next turn."""
    budget: AgentBudget | None
    """None: no limit."""
    number: int = 0
    """The order of arrival."""
    must_stay_pages: int = 0
    """Pinned and protected pages: reserved even where the guarantee is less, for nothing can take them."""
    decoded_steps: int = 0
    """Decode steps that its state was not told of yet: it is told of many at once, when somebody looks at it."""
    match: Match | None = None
    """The idle session that it will continue if it is scheduled now."""
    continued_tokens: int = 0
    """Leading tokens of the prompt that were in the session's cache."""
    replaces: RetainedSession | None = None
    """The idle session that an edited history makes useless (``rewind="recompute"``)."""
    divergence: Divergence | None = None
    """Where the prompt departs from the session's history."""
    may_repair: bool = False
    """Whether it is no turn, if its session is what it says: it computes the newest tokens again
    (`RequestHints.repair_tokens`)."""
    repaired: RetainedSession | None = None
    """The session that it repairs, as it was; None: it is a turn, or has not begun."""
    repairs: bool = False
    """Whether it repairs now. One that was preempted computes everything again, as a turn would."""
    waits_for: str = ""
    """The request that repairs its session: it is waited for."""
    in_worker: bool = False
    """Whether the worker knows its row: it was scheduled in an earlier step and not preempted since."""
    clean_pages: int | None = None
    """Pages that saw the whole context, hence may be published; None: nothing was evicted yet."""
    peak_pages_prefill: int = 0
    peak_pages_decode: int = 0
    settled_pages: int = 0
    """Length of a decoding request's row that was found within its budget and has not changed since; 0: look again."""
    freed_by_region: Counter[str] = field(default_factory=Counter)
    shortfall_pages: int = 0
    recall: TurnRecall = field(default_factory=TurnRecall)
    """Pages that come back in this turn."""
    represented_queries: int = 1
    """Positions that the newest measurement stands for: all of its chunk, or the decode steps since the last one.
    So neither the chunk size nor the stride rescales what attention is found to be."""
    observed_decode: bool = False
    """Whether the newest measurement is of a decode step."""
    _unobserved_steps: int = 0
    _state: SessionState | None = None

    @property
    def state(self) -> SessionState | None:
        """None until the request's first pages are allocated: then it continues an idle session or begins anew."""
        if self.decoded_steps and self._state is not None:
            steps, self.decoded_steps = self.decoded_steps, 0
            self._state.on_decoded(steps)
            self._state.learn(self.request.all_token_ids)
        return self._state

    @state.setter
    def state(self, state: SessionState) -> None:
        self._state = state

    @property
    def has_begun(self) -> bool:
        """Whether it has a state; does not look at it."""
        return self._state is not None

    def is_decoding(self, computed_tokens: int) -> bool:
        """Whether only one token is left to compute."""
        return self.request.num_tokens - computed_tokens <= 1

    def note_peak(self, held_pages: int) -> None:
        """Remember the most pages held, in the phase that the request is in."""
        if self.is_decoding(self.request.num_computed_tokens):
            self.peak_pages_decode = max(self.peak_pages_decode, held_pages)
        else:
            self.peak_pages_prefill = max(self.peak_pages_prefill, held_pages)

    def settle(self, held_pages: int, table_pages: int, budget_pages: int | None) -> None:
        """Remember, after an allocation, whether anything can be to do before the row changes.

        A fixed budget stays and a part of the context only grows; a share of the pool may shrink at any time, and pages
        that are over the budget for now are looked at in each step.
        """
        within = budget_pages is None or held_pages <= budget_pages
        fixed = self.budget is None or self.budget.kind != "share"
        decoding = self.is_decoding(self.request.num_computed_tokens) and not self.recall.rerun_until
        self.settled_pages = table_pages if within and fixed and decoding else 0

    def is_due(self, tokens: int, config: MemDecayConfig) -> bool:
        """Whether a step that computes ``tokens`` positions is a decode step that its own stride has it measured in."""
        return tokens == 1 and self._unobserved_steps + 1 >= config.measure_every_steps

    def queries_to_observe(self, tokens: int, config: MemDecayConfig, *, beside_others: bool = False) -> int:
        """How many of the newest queries of a step that computes ``tokens`` positions to observe; 0: none.

        Args:
            tokens: computed in the step.
            config: the stride and the window.
            beside_others: another request's decode step is measured in this step. Then this one's is too: a step that
                measures has its price, and requests that began apart would pay it one after another.
        """
        if not self._may_bind(config.page_size_tokens):
            return 0
        if tokens > 1:
            self.represented_queries, self.observed_decode = tokens, False
            return min(config.query_window_tokens, tokens)
        self._unobserved_steps += 1
        if self._unobserved_steps < config.measure_every_steps and not beside_others:
            return 0
        self.represented_queries, self.observed_decode = self._unobserved_steps, True
        self._unobserved_steps = 0
        return 1

    def most_pages(self, page_size_tokens: int) -> int:
        """Pages of the longest that the request can become."""
        return -(-(self.request.num_prompt_tokens + self.request.max_tokens) // page_size_tokens)

    def reserved_pages(self, page_size_tokens: int) -> int:
        """What is reserved while it runs: its guarantee and its pins, or without a budget all that it may become."""
        most = self.most_pages(page_size_tokens)
        if self.budget is None:
            return most
        return reservation_pages(self.budget, self.must_stay_pages, most, page_size_tokens)

    def _may_bind(self, page_size_tokens: int) -> bool:
        """A session that lives on may be over its budget in a later turn, a single request only in this one."""
        if self.budget is None:
            return False
        longest = self.request.num_prompt_tokens + self.request.max_tokens
        return (
            self.retains
            or self.budget.kind == "share"
            or self.most_pages(page_size_tokens) > self.budget.limit(longest) // page_size_tokens
        )


def reservation_pages(budget: AgentBudget, must_stay_pages: int, most_pages: int, page_size_tokens: int) -> int:
    """What a request with a budget reserves, in pages.

    Its guarantee, or what must stay of it where that is more, and never more than it can become.
    """
    return min(max(budget.guarantee // page_size_tokens, must_stay_pages), most_pages)


def summarise(tracked: TrackedRequest, state: SessionState, page_size_tokens: int) -> RetentionSummary:
    """What was held and freed, at the end of a request."""
    tokens = state.tokens
    names = tokens.table.names
    total_pages = -(-tokens.computed_tokens // page_size_tokens)
    held = set(state.held_pages)
    view = build_page_view(tokens, np.arange(total_pages), tokens.computed_tokens, state.config)
    page_regions = [names[index] for index in view.page_region.tolist()]
    token_counts = np.bincount(tokens.region[: tokens.computed_tokens], minlength=len(names)).tolist()
    return RetentionSummary(
        session=state.key,
        request_id=tracked.request.request_id,
        agent=state.agent,
        turn=state.turn,
        policy=state.policy.name,
        page_size_tokens=page_size_tokens,
        budget_pages=state.budget_pages,
        guaranteed_pages=state.guaranteed_pages,
        budget_bound=state.budget_bound,
        continued_tokens=tracked.continued_tokens,
        rewound_tokens=tracked.divergence.dropped_tokens if tracked.divergence is not None else 0,
        divergent_region=tracked.divergence.region if tracked.divergence is not None else None,
        pages_held=len(held),
        pages_total=total_pages,
        peak_pages_prefill=tracked.peak_pages_prefill,
        peak_pages_decode=tracked.peak_pages_decode,
        evictions=tracked.freed_by_region.total(),
        shortfall_pages=tracked.shortfall_pages,
        tokens_by_region={name: count for name, count in zip(names, token_counts, strict=True) if count},
        pages_by_region=dict(Counter(page_regions)),
        pages_held_by_region=dict(Counter(region for page, region in enumerate(page_regions) if page in held)),
        freed_by_region=dict(tracked.freed_by_region),
        page_runs=tuple(_runs([(region, page in held) for page, region in enumerate(page_regions)])),
        messages=message_retention(state, sorted(held)),
        repaired_tokens=tracked.request.num_prompt_tokens - tracked.continued_tokens if tracked.recall.mends else 0,
        recalled_pages=tuple(sorted(tracked.recall.recalled)),
    )


def _runs(pages: Sequence[tuple[str, bool]]) -> Iterator[tuple[int, int, str, bool]]:
    """Run-length encode (region, held) by page: (first, end, region, held)."""
    start = 0
    for (region, held), group in itertools.groupby(pages):
        end = start + sum(1 for _ in group)
        yield start, end, region, held
        start = end
