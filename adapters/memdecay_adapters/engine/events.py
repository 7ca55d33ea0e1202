"""What an operator must be able to see: each event is a counter and one structured log line.

The counters are plain numbers here, in the scheduler's process; `metrics` shows them to Prometheus. A log line says
the same in ``key=value`` pairs, and carries them as ``record.memdecay`` for handlers that write JSON.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

logger = logging.getLogger("memdecay.engine")

_PLAIN = re.compile(r"[^\s\"=\\\x00-\x1f\x7f]+")

MAX_LABEL_VALUES = 200
"""Different agents that are counted by name; further ones are counted together, as "(other)"."""


class CounterSpec(NamedTuple):
    """One counter's name, unit included, what it counts, and its labels."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    scale: float = 1.0
    """What is shown for a count of 1: times are counted in nanoseconds and shown in seconds."""


EVICTED_PAGES = CounterSpec(
    "memdecay_evicted_pages", "Pages that left the cache of a live session.", ("agent", "region", "reason")
)
BYPASSES = CounterSpec(
    "memdecay_bypassed_requests", "Requests or measurements served without regions, by reason.", ("reason",)
)
CONTINUED_TOKENS = CounterSpec(
    "memdecay_continued_tokens", "Prompt tokens found in a session's own cache and not computed again.", ("agent",)
)
DIVERGENCES = CounterSpec(
    "memdecay_divergences",
    "Turns whose prompt departs from the session's history, by the region of the first changed token.",
    ("agent", "region", "outcome"),
)
ADMISSION_WAITS = CounterSpec(
    "memdecay_admission_waits", "Requests that had to wait because guarantees filled the pool.", ("agent",)
)
ADMISSION_REFUSALS = CounterSpec(
    "memdecay_refused_admissions", "Requests refused because guarantees filled the pool.", ("agent",)
)
SHRUNK_PAGES = CounterSpec(
    "memdecay_shrunk_pages", "Pages taken back under pool pressure, from idle or running sessions.", ("agent", "state")
)
PARKED_SESSIONS = CounterSpec(
    "memdecay_parked_sessions", "Idle sessions given up because a running request needed their pages.", ("agent",)
)
EXPIRED_SESSIONS = CounterSpec("memdecay_expired_sessions", "Idle sessions given up by age or number.", ("agent",))
PREEMPTIONS = CounterSpec("memdecay_preemptions", "Requests that lost their pages to others.", ("agent",))
SHORTFALLS = CounterSpec(
    "memdecay_budget_shortfalls", "Plans that missed a budget: what is over it is pinned or protected.", ("agent",)
)
TURNS = CounterSpec("memdecay_turns", "Requests with regions that ended.", ("agent",))
UNBOUND_BUDGETS = CounterSpec(
    "memdecay_unbound_budgets", "Agents whose budget never asked for an eviction, found at shut-down.", ("agent",)
)
REFRESHED_TOKENS = CounterSpec(
    "memdecay_refreshed_tokens", "Tokens whose clock was set back because they were attended to.", ("agent", "region")
)
MEASUREMENTS = CounterSpec("memdecay_measurements", "Measurements of a request's attention.", ("agent",))
MEASUREMENT_SECONDS = CounterSpec(
    "memdecay_measurement_seconds", "Time that the slowest worker spent measuring attention, on its CPU.", (), 1e-9
)
PLANNING_SECONDS = CounterSpec("memdecay_planning_seconds", "Time spent planning and booking evictions.", (), 1e-9)
RECALLS = CounterSpec(
    "memdecay_recalls",
    "Turns that asked for pages in host memory, by outcome.",
    ("agent", "cause", "outcome"),
)
RECALLED_PAGES = CounterSpec("memdecay_recalled_pages", "Pages that came back from host memory.", ("agent", "cause"))
DROPPED_HOST_PAGES = CounterSpec(
    "memdecay_dropped_host_pages", "Evicted pages that the host tier has no room for any more.", ("agent",)
)
HOST_COPIED_BYTES = CounterSpec(
    "memdecay_host_copied_bytes", "Bytes copied between device and host tier.", ("direction",)
)
HOST_SECONDS = CounterSpec(
    "memdecay_host_tier_seconds", "Time of the host tier's work in the slowest worker.", ("work",), 1e-9
)
TIER_COUNTERS = (RECALLS, RECALLED_PAGES, DROPPED_HOST_PAGES, HOST_COPIED_BYTES, HOST_SECONDS)
"""Shown only where there is a host tier."""

COUNTERS: Mapping[str, CounterSpec] = {
    spec.name: spec
    for spec in (
        EVICTED_PAGES, BYPASSES, CONTINUED_TOKENS, DIVERGENCES, ADMISSION_WAITS, ADMISSION_REFUSALS, SHRUNK_PAGES,
        PARKED_SESSIONS, EXPIRED_SESSIONS, PREEMPTIONS, SHORTFALLS, TURNS, UNBOUND_BUDGETS, REFRESHED_TOKENS,
        MEASUREMENTS, MEASUREMENT_SECONDS, PLANNING_SECONDS, *TIER_COUNTERS,
    )
}  # fmt: skip
"""All counters by name."""


class EngineEvents:
    """Counts since start. Owned by the scheduler's thread."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[tuple[str, ...]]] = {name: Counter() for name in COUNTERS}
        self._agents: set[str] = set()
        self.version = 0
        """Grows with every count."""

    def count(self, spec: CounterSpec, *labels: str, by: int = 1) -> None:
        """Add to a counter; labels in the order of its specification."""
        counts = self._counts[spec.name]
        counts[labels if labels in counts else tuple(self._bounded(spec, labels))] += by
        self.version += 1

    def note(self, spec: CounterSpec, *labels: str, by: int = 1, level: int = logging.INFO, **fields: object) -> None:
        """Add to a counter and write a log line with the labels and further fields."""
        self.count(spec, *labels, by=by)
        if logger.isEnabledFor(level):
            given = {**dict(zip(spec.labels, labels, strict=True)), **fields}
            pairs = {key: value if isinstance(value, (int, float)) else str(value) for key, value in given.items()}
            event = spec.name.removeprefix("memdecay_")
            line = " ".join(f"{key}={_quoted(value)}" for key, value in pairs.items())
            logger.log(level, "event=%s count=%d %s", event, by, line, extra={"memdecay": {"event": event, **pairs}})

    def total(self, spec: CounterSpec) -> int:
        """A counter over all labels."""
        return self._counts[spec.name].total()

    def of(self, spec: CounterSpec) -> Counter[tuple[str, ...]]:
        """A copy of a counter, by label values."""
        return Counter(self._counts[spec.name])

    def __iter__(self) -> Iterator[tuple[CounterSpec, tuple[str, ...], int]]:
        """Every counter that is above zero: specification, label values, count."""
        for name, counts in self._counts.items():
            for labels, count in counts.items():
                yield COUNTERS[name], labels, count

    def label_of(self, agent: str) -> str:
        """What an agent is called in metrics: its name, or "(other)" where there are too many."""
        if agent not in self._agents:
            if len(self._agents) >= MAX_LABEL_VALUES:
                return "(other)"
            self._agents.add(agent)
        return agent

    def _bounded(self, spec: CounterSpec, labels: tuple[str, ...]) -> Iterator[str]:
        for name, value in zip(spec.labels, labels, strict=True):
            yield self.label_of(value) if name == "agent" else value


def _quoted(value: object) -> str:
    """A value as it stands in a line: names come from users, and must not look like further fields or lines."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
