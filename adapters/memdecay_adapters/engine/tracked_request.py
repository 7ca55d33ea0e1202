"""One request under a budget, between vLLM's scheduler and its session."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memdecay_adapters.engine.results import RetentionSummary
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.pages import build_page_view
from memdecay_agents.session_state import SessionState

if TYPE_CHECKING:
    from memdecay_adapters.engine.controller import Request


@dataclass
class TrackedRequest:
    """What the controller remembers of a request beside its session."""

    request: Request
    state: SessionState
    clean_pages: int | None = None
    """Pages that saw the whole context, hence may be published; None: nothing was evicted yet."""
    peak_pages_prefill: int = 0
    peak_pages_decode: int = 0
    evictions: int = 0
    shortfall_pages: int = 0
    observed_stride: int = 1
    """Decode steps that the newest decode measurement stands for."""
    _decode_steps: int = 0
    _unobserved_steps: int = 0

    def note_peak(self, held_pages: int) -> None:
        """Remember the most pages held, in the phase that the request is in."""
        if self.request.num_tokens - self.request.num_computed_tokens <= 1:
            self.peak_pages_decode = max(self.peak_pages_decode, held_pages)
        else:
            self.peak_pages_prefill = max(self.peak_pages_prefill, held_pages)

    def schedule(self, tokens: int, config: MemDecayConfig, uses_attention: bool) -> int:
        """Account for a step that computes ``tokens`` positions; return the queries to observe, 0 for none."""
        computed = self.request.num_computed_tokens + tokens
        generated = int(computed >= self.request.num_tokens)
        self.state.on_computed(tokens, generated)
        if not uses_attention or not self._may_bind(config.page_size_tokens):
            return 0
        if tokens > 1:
            return min(config.query_window_tokens, tokens)
        self._unobserved_steps += 1
        if self._unobserved_steps < config.measure_every_steps:
            return 0
        self.observed_stride, self._unobserved_steps = self._unobserved_steps, 0
        return 1

    def _may_bind(self, page_size_tokens: int) -> bool:
        budget = self.state.budget_pages
        if budget is None:
            return False
        longest = self.request.num_prompt_tokens + self.request.max_tokens
        return -(-longest // page_size_tokens) > budget

    def summary(self, page_size_tokens: int, policy: str) -> RetentionSummary:
        """What was held and freed, at the end of the request."""
        state, tokens = self.state, self.state.tokens
        names = tokens.table.names
        total_pages = -(-tokens.computed_tokens // page_size_tokens)
        held = set(state.held_pages)
        view = build_page_view(tokens, np.arange(total_pages), tokens.computed_tokens, state.config)
        page_regions = [names[index] for index in view.page_region.tolist()]
        token_counts = np.bincount(tokens.region, minlength=len(names)).tolist()
        freed = state.ledger.entries(state.key, request_id=self.request.request_id)
        return RetentionSummary(
            session=state.key,
            request_id=self.request.request_id,
            agent=state.agent,
            turn=state.turn,
            policy=policy,
            page_size_tokens=page_size_tokens,
            budget_pages=state.budget_pages,
            pages_held=len(held),
            pages_total=total_pages,
            peak_pages_prefill=self.peak_pages_prefill,
            peak_pages_decode=self.peak_pages_decode,
            evictions=self.evictions,
            shortfall_pages=self.shortfall_pages,
            tokens_by_region={name: count for name, count in zip(names, token_counts, strict=True) if count},
            pages_by_region=dict(Counter(page_regions)),
            pages_held_by_region=dict(Counter(r for page, r in enumerate(page_regions) if page in held)),
            freed_by_region=dict(Counter(entry.region for entry in freed)),
            page_runs=tuple(_runs([(region, page in held) for page, region in enumerate(page_regions)])),
        )


def _runs(pages: Sequence[tuple[str, bool]]) -> Iterator[tuple[int, int, str, bool]]:
    """Run-length encode (region, held) by page: (first, end, region, held)."""
    start = 0
    for (region, held), group in itertools.groupby(pages):
        end = start + sum(1 for _ in group)
        yield start, end, region, held
        start = end
