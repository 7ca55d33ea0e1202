"""Outcomes summed into cells, and the comparisons that claims rest on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from memdecay_agents.evaluation.outcomes import FactOutcome
from memdecay_agents.evaluation.statistics import Interval, paired_difference, proportion
from memdecay_agents.evaluation.variants import BASELINES


@dataclass(frozen=True)
class Cell:
    """All facts of one region, under one policy and budget, in traces of one source and length."""

    source: str
    stage: str
    length: int
    budget: float
    policy: str
    pinned: bool
    region: str
    tier: str
    """"off" or "host"."""
    asking: str
    facts: int
    survived: int
    probes: int
    """Facts that were asked for."""
    correct: int
    """Those of them answered with the right one of eight."""
    exact: int
    """Those whose right value was the most likely of all words."""
    degenerate: bool
    """In some of the traces pinned and protected pages fill more than half of the budget."""

    def as_json(self) -> dict[str, Any]:
        """As in ``--json``: with Wilson's 95 % intervals of the rates, [low, high]; None where nothing was asked."""
        asked = {"correct": self.correct, "exact": self.exact}
        return {
            **asdict(self),
            "survived_interval": _rounded(proportion(self.survived, self.facts)),
            **{f"{name}_interval": _rounded(proportion(k, self.probes)) if self.probes else None
               for name, k in asked.items()},
        }  # fmt: skip


def cells_of(outcomes: Iterable[FactOutcome]) -> list[Cell]:
    """One cell for each group of outcomes, sorted."""
    groups: dict[tuple[str, str, int, float, str, bool, str, str, str], list[FactOutcome]] = {}
    for o in outcomes:
        key = (o.source, o.stage, o.length, o.budget, o.policy, o.pinned, o.region, o.tier, o.asking)
        groups.setdefault(key, []).append(o)
    return [
        Cell(
            *key,
            facts=len(group),
            survived=sum(o.survived for o in group),
            probes=sum(o.correct is not None for o in group),
            correct=sum(bool(o.correct) for o in group),
            exact=sum(bool(o.exact) for o in group),
            degenerate=any(o.degenerate for o in group),
        )
        for key, group in sorted(groups.items())
    ]


class Place(NamedTuple):
    """Where policies are compared."""

    source: str
    length: int
    budget: float


class Comparison(NamedTuple):
    """The default policy against the best baseline with pins, on unpinned regions of one place."""

    place: Place
    ours: float
    """Rate of the default policy."""
    best: str
    theirs: float
    facts: int
    difference: Interval

    @property
    def ratio(self) -> float:
        """Ours over theirs; infinite where only ours kept anything, 1 where neither did."""
        if self.theirs > 0:
            return self.ours / self.theirs
        return math.inf if self.ours > 0 else 1.0


def places(outcomes: Sequence[FactOutcome], stage: str, *, degenerate: bool = False) -> list[Place]:
    """The places of a stage under a budget; degenerate ones only where asked."""
    found: dict[Place, bool] = {}
    for o in outcomes:
        if o.stage == stage and o.budget < 1.0:
            place = Place(o.source, o.length, o.budget)
            found[place] = found.get(place, False) or (o.degenerate and o.pinned)
    return sorted(place for place, bad in found.items() if degenerate or not bad)


def compare(
    outcomes: Sequence[FactOutcome], stage: str, *, ours: str = "memdecay", asked: bool = False
) -> list[Comparison]:
    """The default policy against the best pinned baseline of each place that is not degenerate.

    Args:
        outcomes: of any stages.
        stage: "replay" or "verify".
        ours: name of the policy that is compared.
        asked: compare right answers instead of survival.
    """
    by_place: dict[Place, dict[str, dict[tuple[str, str], bool]]] = {}
    for o in outcomes:
        if o.stage != stage or not o.pinned or o.region == "system" or (asked and o.correct is None):
            continue
        value = bool(o.correct) if asked else o.survived
        by_place.setdefault(Place(o.source, o.length, o.budget), {}).setdefault(o.policy, {})[o.trace, o.fact] = value
    made = []
    for place in places(outcomes, stage):
        policies = by_place.get(place, {})
        baselines = [name for name in BASELINES if policies.get(name)]
        if not policies.get(ours) or not baselines:
            continue
        best = max(baselines, key=lambda name: _rate(policies[name]))
        made.append(
            Comparison(
                place,
                _rate(policies[ours]),
                best,
                _rate(policies[best]),
                len(policies[ours]),
                paired_difference(policies[ours], policies[best]),
            )
        )
    return made


def agreement(outcomes: Iterable[FactOutcome]) -> tuple[int, int]:
    """Facts on which replay and verify say the same about survival, and facts that both looked at."""
    by_stage: dict[str, dict[Any, bool]] = {"replay": {}, "verify": {}}
    for o in outcomes:
        if o.budget < 1.0 and o.stage in by_stage:
            by_stage[o.stage][o.key] = o.survived
    shared = by_stage["replay"].keys() & by_stage["verify"].keys()
    return sum(by_stage["replay"][key] == by_stage["verify"][key] for key in shared), len(shared)


def full_cache_difference(outcomes: Sequence[FactOutcome], policy: str = "memdecay") -> dict[Place, Interval]:
    """Right answers to system questions under a policy less those with the full cache, by place."""
    full: dict[tuple[str, int], dict[tuple[str, str], bool]] = {}
    under: dict[Place, dict[tuple[str, str], bool]] = {}
    for o in outcomes:
        if o.stage != "verify" or o.region != "system" or o.correct is None:
            continue
        if o.policy == "full":
            full.setdefault((o.source, o.length), {})[o.trace, o.fact] = o.correct
        elif o.policy == policy and o.pinned:
            under.setdefault(Place(o.source, o.length, o.budget), {})[o.trace, o.fact] = o.correct
    return {
        place: paired_difference(values, full.get((place.source, place.length), {})) for place, values in under.items()
    }


class Mentions(NamedTuple):
    """Survival of unpinned facts that a later message names again, and of those that none does, under one policy."""

    stage: str
    place: Place
    policy: str
    pinned: bool
    mentioned_survived: int
    mentioned: int
    others_survived: int
    others: int

    def as_json(self) -> dict[str, Any]:
        """As in ``--json``."""
        return {**self.place._asdict(), **{k: v for k, v in self._asdict().items() if k != "place"}}


def mentions(outcomes: Sequence[FactOutcome]) -> list[Mentions]:
    """One row for each stage, place under a budget, and policy in whose traces a fact is named again, sorted."""
    groups: dict[tuple[str, Place, str, bool], list[FactOutcome]] = {}
    for o in outcomes:
        if o.budget < 1.0 and o.region != "system" and o.stage != "recall":
            groups.setdefault((o.stage, Place(o.source, o.length, o.budget), o.policy, o.pinned), []).append(o)
    rows = []
    for key, group in sorted(groups.items()):
        again, others = ([o.survived for o in group if o.mentioned_again is wanted] for wanted in (True, False))
        if again:
            rows.append(Mentions(*key, sum(again), len(again), sum(others), len(others)))
    return rows


def _rounded(interval: Interval) -> list[float]:
    return [round(interval.low, 4), round(interval.high, 4)]


def _rate(values: dict[tuple[str, str], bool]) -> float:
    return sum(values.values()) / len(values) if values else math.nan
