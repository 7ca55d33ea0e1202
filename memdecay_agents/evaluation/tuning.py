"""Which budget and profile keep what an agent needs: chosen on half of its traces, shown on the other half."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from memdecay_agents.evaluation.outcomes import at_risk, survived
from memdecay_agents.evaluation.recording import AttentionRecording
from memdecay_agents.evaluation.replay import Replay, budget_tokens
from memdecay_agents.evaluation.statistics import Interval, proportion
from memdecay_agents.evaluation.traces import TokenTrace
from memdecay_agents.evaluation.variants import Variant

BUDGETS = (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

FEW_FACTS = 20
"""Fewer in one half: the 95 % interval of a proportion of one half then reaches about 0.2 to either side."""


@dataclass(frozen=True)
class ModelCost:
    """What a model spends, in floating-point operations."""

    per_token: float
    """To compute one token, attention left out: twice the parameters that it passes."""
    per_pair: float
    """For one query to attend to one cached token, in all layers."""


@dataclass(frozen=True)
class Balance:
    """What a budget saved and cost, summed over traces."""

    facts: int
    survived: int
    saved: float
    """Operations not spent on attending to evicted tokens."""
    spent: float
    """Operations to compute once more every message whose fact was lost and needed."""
    peak_part: float
    """Tokens held at the end, as a part of all tokens."""

    @property
    def kept(self) -> Interval:
        """Part of the facts that survived."""
        return proportion(self.survived, self.facts)

    @property
    def pays(self) -> bool:
        """Whether eviction saves more than it costs."""
        return self.saved >= self.spent


@dataclass(frozen=True)
class Proposal:
    """A budget and a profile, with the evidence."""

    variant: Variant
    budget: float
    chosen_on: Balance
    shown_on: Balance
    budget_tokens: int
    """For the longest of the traces."""

    @property
    def rests_on_few(self) -> bool:
        """Whether one of the halves has so few facts at risk that another choice of traces may turn it over."""
        return min(self.chosen_on.facts, self.shown_on.facts) < FEW_FACTS


def balance(
    traces: Iterable[tuple[TokenTrace, AttentionRecording]], variant: Variant, budget: float, cost: ModelCost
) -> Balance:
    """Replay traces under a budget (a part of their tokens) and weigh what was saved against what was lost."""
    replay = Replay()
    facts = kept = held = total = 0
    saved = spent = 0.0
    page = variant.config().page_size_tokens
    for trace, recording in traces:
        result = replay.run(trace, recording, variant, budget)
        held += min(len(result.held_pages) * page, trace.n_tokens)
        total += trace.n_tokens
        saved += sum(page * (trace.n_tokens - entry.computed_tokens) for entry in result.evictions) * cost.per_pair
        lost_spans = set()
        for fact in at_risk(trace.facts, budget_tokens(trace, budget)):
            facts += 1
            if survived(fact, result.evictions):
                kept += 1
            else:
                lost_spans.add(next(span for span in trace.spans if span.start <= fact.start < span.end))
        for span in lost_spans:
            tokens = span.end - span.start
            spent += tokens * (cost.per_token + cost.per_pair * budget * trace.n_tokens)
    return Balance(facts, kept, saved, spent, held / total if total else 0.0)


def halves(traces: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Every other trace; one trace alone is in both."""
    return list(traces[::2]), list(traces[1::2]) or list(traces[::2])


def propose(
    traces: Sequence[tuple[TokenTrace, AttentionRecording]],
    variants: Sequence[Variant],
    keep: float,
    cost: ModelCost,
    budgets: Sequence[float] = BUDGETS,
) -> tuple[Proposal | None, dict[tuple[str, float], Balance]]:
    """The smallest budget that keeps enough, with the variant that keeps most at it.

    Args:
        traces: with their recordings.
        variants: profiles to choose from.
        keep: part of the facts at risk that has to survive.
        cost: of the model.
        budgets: parts of a trace's tokens to try, rising.

    Returns:
        The proposal, None where no budget keeps enough; and what each variant and budget did on the first half.
    """
    first, second = halves(traces)
    tried: dict[tuple[str, float], Balance] = {}
    for budget in budgets:
        for variant in variants:
            tried[variant.label, budget] = balance(first, variant, budget, cost)
    longest = max(trace.n_tokens for trace, _ in traces)
    for budget in budgets:
        good = [v for v in variants if (b := tried[v.label, budget]).facts == 0 or b.survived >= keep * b.facts]
        if good:
            best = max(good, key=lambda v: tried[v.label, budget].survived)
            shown = balance(second, best, budget, cost)
            return Proposal(best, budget, tried[best.label, budget], shown, round(budget * longest)), tried
    return None, tried
