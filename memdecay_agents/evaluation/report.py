"""The result as tables (plain, Markdown) and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from memdecay_agents.evaluation.cells import (
    Cell,
    Comparison,
    Place,
    agreement,
    cells_of,
    compare,
    full_cache_difference,
    mentions,
    places,
)
from memdecay_agents.evaluation.outcomes import FactOutcome
from memdecay_agents.evaluation.recall_report import recall_comparisons
from memdecay_agents.evaluation.statistics import Interval, mean_interval, proportion
from memdecay_agents.evaluation.variants import PAGE_SIZE_TOKENS

SCHEMA_VERSION = 1
PUBLISHED = (
    "Published (Qwen2.5 1.5B and 3B, 450 and 1,700 tokens, 4,320 probes): of 24 system probes MemDecay keeps 21-24, "
    "recency 0-2; accumulated attention beats MemDecay on unpinned facts at 3B."
)
_PUBLISHED_ROWS = (
    ("system", "paper", True, "21-24 of 24"),
    ("system", "memdecay", True, ""),
    ("system", "recency", False, "0-2 of 24"),
    ("unpinned", "paper", True, "below accumulated attention at 3B"),
    ("unpinned", "accumulated_attention", True, "above the published method at 3B"),
    ("unpinned", "memdecay", True, ""),
    ("unpinned", "full", False, ""),
)
Table = tuple[list[str], list[list[str]]]
"""Titles and rows."""


@dataclass(frozen=True)
class EvaluationResult:
    """All outcomes of one evaluation."""

    outcomes: tuple[FactOutcome, ...]
    about: dict[str, Any] = field(default_factory=dict)
    """Model, machine, versions, options, factorisation."""
    skipped: tuple[str, ...] = ()
    """What was left out, and why."""

    @property
    def cells(self) -> list[Cell]:
        """All cells, degenerate ones too."""
        return cells_of(self.outcomes)

    @property
    def replay_agreement(self) -> float | None:
        """Part of the facts on which replay and verify agree; None: nothing was verified."""
        same, n = agreement(self.outcomes)
        return same / n if n else None

    def as_json(self) -> dict[str, Any]:
        """As in ``--json``."""
        made: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "page_size_tokens": PAGE_SIZE_TOKENS,
            "cells": [cell.as_json() for cell in self.cells],
            "replay_agreement": self.replay_agreement,
        }
        if self.replay_agreement is None:
            made["replay_agreement_reason"] = "no trace was both replayed and verified under a budget"
        made["comparisons"] = [
            {
                "stage": stage,
                "answers": asked,
                **comparison.place._asdict(),
                "memdecay": round(comparison.ours, 4),
                "best_pinned_baseline": comparison.best,
                "baseline": round(comparison.theirs, 4),
                "facts": comparison.facts,
                "ratio": _finite(comparison.ratio),
                "difference": _interval(comparison.difference),
            }
            for stage, asked in (("replay", False), ("verify", False), ("verify", True))
            for comparison in compare(self.outcomes, stage, asked=asked)
        ]
        made["system_difference_to_full_cache"] = [
            {**place._asdict(), "difference": _interval(interval)}
            for place, interval in sorted(full_cache_difference(self.outcomes).items())
        ]
        made["mentioned_again"] = [row.as_json() for row in mentions(self.outcomes)]
        if recalled := recall_comparisons(self.outcomes):
            made["recall"] = [comparison.as_json() for comparison in recalled]
        return {**made, "skipped": list(self.skipped), **self.about}


def mean_ratio(comparisons: Sequence[Comparison]) -> Interval:
    """Mean over places of ours over the best pinned baseline's; places where neither kept anything count as 1."""
    return mean_interval([c.ratio for c in comparisons if math.isfinite(c.ratio)])


def survival_table(outcomes: Sequence[FactOutcome], stage: str) -> Table:
    """Rows: policies. Columns: for each place the system and the other facts that survived, of how many."""
    found = places(outcomes, stage, degenerate=True)
    fair = set(places(outcomes, stage))
    titles = ["policy"] + [_title(place) + ("" if place in fair else " *") for place in found]
    rows = []
    for policy, pinned in _policies(outcomes, stage):
        row = [policy + ("" if not pinned or policy in ("memdecay", "paper") else " + pin")]
        for place in found:
            mine = [
                o
                for o in outcomes
                if o.stage == stage
                and (o.policy, o.pinned) == (policy, pinned)
                and (o.source, o.length) == place[:2]
                and (o.budget == place.budget or policy == "full")
            ]
            row.append("; ".join(_counts(mine, system) for system in (True, False)))
        rows.append(row)
    return titles, rows


def comparison_table(outcomes: Sequence[FactOutcome], stage: str, *, asked: bool = False) -> Table:
    """The default policy against the best baseline with pins, unpinned regions, place by place."""
    titles = ["place", "memdecay", "best baseline with pins", "ratio", "paired difference"]
    rows = [
        [
            _title(c.place),
            f"{c.ours:.2f} of {c.facts}",
            f"{c.theirs:.2f} {c.best}",
            f"{c.ratio:.2f}",
            f"{c.difference.value:+.2f} [{c.difference.low:+.2f}, {c.difference.high:+.2f}]",
        ]
        for c in compare(outcomes, stage, asked=asked)
    ]
    return titles, rows


def published_table(outcomes: Sequence[FactOutcome]) -> Table:
    """What was published beside right answers of eight here, summed over all places that are not degenerate."""
    fair = set(places(outcomes, "verify"))
    asked = [
        o
        for o in outcomes
        if o.correct is not None and (o.policy == "full" or Place(o.source, o.length, o.budget) in fair)
    ]
    rows = []
    for region, policy, pinned, published in _PUBLISHED_ROWS:
        mine = [
            o
            for o in asked
            if (o.policy, o.pinned) == (policy, pinned) and (o.region == "system") == (region == "system")
        ]
        if mine:
            right = sum(bool(o.correct) for o in mine)
            label = policy + (" + pin" if pinned and policy not in ("memdecay", "paper") else "")
            rows.append([f"{region}, {label}", published, f"{right} of {len(mine)}"])
    return ["right answers under real eviction", "published (Qwen2.5 1.5B, 3B)", "here"], rows


def region_table(outcomes: Iterable[FactOutcome], stage: str, policies: Sequence[tuple[str, bool]]) -> Table:
    """Survival by region, summed over all places that are not degenerate."""
    kept = [o for o in outcomes if o.stage == stage and not o.degenerate and o.budget < 1.0]
    regions = sorted({o.region for o in kept})
    rows = []
    for policy, pinned in policies:
        mine = [o for o in kept if (o.policy, o.pinned) == (policy, pinned)]
        if mine:
            label = policy + (" + pin" if pinned and policy not in ("memdecay", "paper") else "")
            rows.append([label] + [_rate([o for o in mine if o.region == region]) for region in regions])
    return ["policy", *regions], rows


def markdown(table: Table) -> str:
    """A table in Markdown."""
    titles, rows = table
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _policies(outcomes: Sequence[FactOutcome], stage: str) -> list[tuple[str, bool]]:
    return list(dict.fromkeys((o.policy, o.pinned) for o in outcomes if o.stage == stage))


def _title(place: Place) -> str:
    return f"{place.source} {place.length} @ {place.budget:.0%}"


def _counts(outcomes: Sequence[FactOutcome], system: bool) -> str:
    mine = [o for o in outcomes if (o.region == "system") == system]
    text = f"{sum(o.survived for o in mine)}/{len(mine)}"
    if asked := [o for o in mine if o.correct is not None]:
        text += f" ({sum(bool(o.correct) for o in asked)}/{len(asked)} right)"
    return text if mine else "-"


def _rate(outcomes: Sequence[FactOutcome]) -> str:
    return str(proportion(sum(o.survived for o in outcomes), len(outcomes))) if outcomes else "-"


def _interval(interval: Interval) -> dict[str, float | None]:
    return {name: _finite(value) for name, value in interval._asdict().items()}


def _finite(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None
