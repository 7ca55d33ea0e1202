"""What a host tier brings back: right answers under a budget against those of the full cache, with it and without."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from memdecay_agents.evaluation.outcomes import FactOutcome
from memdecay_agents.evaluation.statistics import Interval, paired_difference

_Answers = dict[tuple[str, str], FactOutcome]
"""Outcomes by trace and fact."""


@dataclass(frozen=True)
class Counts:
    """Facts that were asked for."""

    facts: int
    whole: int
    """All pages were there when it was answered."""
    correct: int
    """The right one of eight."""
    exact: int
    """The right value was the most likely of all words."""


@dataclass(frozen=True)
class RecallComparison:
    """One policy in one place, asked in one way: the full cache, the budget alone, the budget with a host tier."""

    source: str
    length: int
    budget: float
    policy: str
    asking: str
    degenerate: bool
    full: Counts
    """Unpinned facts, as the next two."""
    off: Counts
    host: Counts
    correct_ratio: float | None
    """Of the host tier's right answers of eight to those of the full cache; None: it gave none."""
    exact_ratio: float | None
    system_difference: Interval
    """Right answers of eight to pinned facts with the tier less those without it, paired."""

    def as_json(self) -> dict[str, Any]:
        """As in ``--json``."""
        finite = {name: v if math.isfinite(v) else None for name, v in self.system_difference._asdict().items()}
        return {**asdict(self), "system_difference": finite}


def recall_comparisons(outcomes: Iterable[FactOutcome]) -> list[RecallComparison]:
    """All places of the recall stage in which a tier was asked the same as the full cache."""
    groups: dict[tuple[str, int, str], dict[tuple[str, float, str], _Answers]] = {}
    for o in outcomes:
        if o.stage == "recall":
            place = groups.setdefault((o.source, o.length, o.asking), {})
            place.setdefault((o.policy, o.budget, o.tier), {})[o.trace, o.fact] = o
    made = []
    for (source, length, asking), place in sorted(groups.items()):
        ceiling = place.get(("full", 1.0, "off"), {})
        for (policy, budget, tier), with_tier in sorted(place.items()):
            without = place.get((policy, budget, "off"), {})
            shared = with_tier.keys() & without.keys() & ceiling.keys()
            if tier != "host" or not shared:
                continue
            full, off, host = (_counts(one, shared) for one in (ceiling, without, with_tier))
            asked = any(o.correct is not None for o in with_tier.values())
            made.append(
                RecallComparison(
                    source=source,
                    length=length,
                    budget=budget,
                    policy=policy,
                    asking=asking,
                    degenerate=any(o.degenerate for o in with_tier.values()),
                    full=full,
                    off=off,
                    host=host,
                    correct_ratio=host.correct / full.correct if asked and full.correct else None,
                    exact_ratio=host.exact / full.exact if asked and full.exact else None,
                    system_difference=paired_difference(_system(with_tier), _system(without)),
                )
            )
    return made


def recall_table(outcomes: Sequence[FactOutcome]) -> tuple[list[str], list[list[str]]]:
    """Titles and rows: whole facts, right answers of eight and exact ones, of how many."""
    titles = [
        "place", "asked", "full cache", "no tier", "host tier", "of eight : full", "exact : full", "system, paired",
    ]  # fmt: skip
    rows = [
        [
            f"{c.source} {c.length} @ {c.budget:.0%}" + (" *" if c.degenerate else ""),
            c.asking,
            *(f"{one.whole}/{one.correct}/{one.exact} of {one.facts}" for one in (c.full, c.off, c.host)),
            _ratio(c.correct_ratio),
            _ratio(c.exact_ratio),
            f"{c.system_difference.value:+.2f} [{c.system_difference.low:+.2f}, {c.system_difference.high:+.2f}]"
            if math.isfinite(c.system_difference.value)
            else "-",
        ]
        for c in recall_comparisons(outcomes)
    ]
    return titles, rows


def _counts(answers: _Answers, shared: Iterable[tuple[str, str]]) -> Counts:
    mine = [answers[key] for key in shared if answers[key].region != "system"]
    return Counts(
        len(mine),
        sum(o.survived for o in mine),
        sum(bool(o.correct) for o in mine),
        sum(bool(o.exact) for o in mine),
    )


def _system(answers: _Answers) -> dict[tuple[str, str], bool]:
    return {key: o.correct for key, o in answers.items() if o.region == "system" and o.correct is not None}


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
