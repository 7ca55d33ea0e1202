"""What is held now, as gauges: by agent and region, of the pool, and how well budgets are met."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memdecay_adapters.engine.events import CounterSpec, EngineEvents
from memdecay_agents.pages import page_facts
from memdecay_agents.session_state import SessionState

if TYPE_CHECKING:
    from memdecay_adapters.engine.agent_tallies import AgentTally
    from memdecay_adapters.engine.controller import EvictionController

HELD_PAGES = CounterSpec(
    "memdecay_held_pages", "Pages that live sessions hold, by majority region.", ("agent", "region")
)
POOL_PAGES = CounterSpec("memdecay_pool_pages", "Pages of the KV-cache pool.", ("state",))
IDLE_SESSIONS = CounterSpec("memdecay_idle_sessions", "Sessions between their turns.")
WAITING_REQUESTS = CounterSpec("memdecay_waiting_requests", "Requests that wait for admission.")
BUDGET_PAGES = CounterSpec("memdecay_agent_budget_pages", "Budget of an agent's newest turn.", ("agent",))
PEAK_PAGES = CounterSpec("memdecay_agent_peak_pages", "Most pages that an agent held while decoding.", ("agent",))
BUDGET_USE = CounterSpec(
    "memdecay_achieved_budget_ratio",
    "Most pages held while decoding over the budget; above 1 it was missed.",
    ("agent",),
)
HOST_TIER_BYTES = CounterSpec(
    "memdecay_host_tier_bytes", "Bytes of pages in the host tier, in memory and on disk, over all ranks."
)
TIER_GAUGES = (HOST_TIER_BYTES,)
"""Shown only where there is a host tier."""
GAUGES = {
    spec.name: spec
    for spec in (
        HELD_PAGES, POOL_PAGES, IDLE_SESSIONS, WAITING_REQUESTS, BUDGET_PAGES, PEAK_PAGES, BUDGET_USE, *TIER_GAUGES,
    )
}  # fmt: skip
"""All gauges by name; agents beyond `MAX_LABEL_VALUES` are taken together, as "(other)"."""

LEAST_SECONDS_APART = 2.0
MOST_SHARE_OF_TIME = 0.005
"""What reading the gauges may take of the scheduler's time."""
MOST_SHARE_AT_REST = 0.05
"""The same at the end of a request that leaves nothing running: what is shown then stays until the next one."""


class GaugeSample(NamedTuple):
    """One gauge's value for one set of labels."""

    spec: CounterSpec
    labels: tuple[str, ...]
    value: float


def read_gauges(controller: EvictionController, total_pages: int, free_pages: int) -> list[GaugeSample]:
    """All gauges between two steps.

    Args:
        controller: of the engine.
        total_pages: usable pages of the pool.
        free_pages: free or reclaimable ones.
    """
    events = controller.events
    admission = controller.admission
    samples = [
        GaugeSample(POOL_PAGES, ("free",), free_pages),
        GaugeSample(POOL_PAGES, ("held",), total_pages - free_pages),
        GaugeSample(POOL_PAGES, ("guaranteed",), admission.reserved_pages),
        GaugeSample(IDLE_SESSIONS, (), len(controller.sessions)),
        GaugeSample(WAITING_REQUESTS, (), admission.waiting_requests),
    ]
    if controller.tier is not None:
        host_pages = len(controller.tier.catalogue)
        samples.append(GaugeSample(HOST_TIER_BYTES, (), host_pages * controller.tier.page_bytes))
    for (agent, region), pages in held_by_agent(controller).items():
        samples.append(GaugeSample(HELD_PAGES, (agent, region), pages))
    return samples + _achieved(list(controller.agents), events)


def held_by_agent(controller: EvictionController) -> Counter[tuple[str, str]]:
    """Pages by (agent, majority region) of all sessions that live; shared pages count for each."""
    found: Counter[tuple[str, str]] = Counter()

    def add(state: SessionState, held_pages: Sequence[int]) -> None:
        regions, _, _ = page_facts(state.tokens, np.asarray(held_pages, dtype=np.int64))
        agent, names = controller.events.label_of(state.agent), state.tokens.table.names
        for region, pages in enumerate(np.bincount(regions, minlength=len(names)).tolist()):
            if pages:
                found[agent, names[region]] += pages

    for _, _, state in controller.running():
        add(state, state.held_pages)
    for session in controller.sessions:
        add(session.state, session.held_pages)
    return found


def _achieved(tallies: Sequence[AgentTally], events: EngineEvents) -> list[GaugeSample]:
    """Budgets and peaks; agents that share a label show the one that misses its budget most."""
    by_label: dict[str, list[AgentTally]] = defaultdict(list)
    for tally in tallies:
        by_label[events.label_of(tally.agent)].append(tally)
    samples = []
    for label, together in by_label.items():
        worst = max(together, key=lambda tally: tally.peak_pages / (tally.budget_pages or 2**31))
        samples.append(GaugeSample(PEAK_PAGES, (label,), worst.peak_pages))
        if worst.budget_pages is not None:
            samples.append(GaugeSample(BUDGET_PAGES, (label,), worst.budget_pages))
            if worst.budget_pages:
                samples.append(GaugeSample(BUDGET_USE, (label,), worst.peak_pages / worst.budget_pages))
    return samples


class GaugeSchedule:
    """When a server reads the gauges: when nothing runs any more, else every few seconds; always at little cost."""

    def __init__(self) -> None:
        self._next = self._next_at_rest = 0.0

    def is_due(self, running: int) -> bool:
        """Whether to read them after a step that leaves so many requests."""
        return time.monotonic() >= (self._next if running else self._next_at_rest)

    def took(self, seconds: float) -> None:
        """Reading them took so long."""
        now = time.monotonic()
        self._next = now + max(LEAST_SECONDS_APART, seconds / MOST_SHARE_OF_TIME)
        self._next_at_rest = now + seconds / MOST_SHARE_AT_REST
