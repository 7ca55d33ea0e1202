"""A snapshot of the scheduler's side: what a tenant's sessions, or all, hold and do now. Called between two steps."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from memdecay_adapters.engine.live_tallies import LiveTally
from memdecay_adapters.engine.session_listing import describe_sessions
from memdecay_agents.live.snapshot import AgentView, EngineSnapshot, PoolView, SessionView

if TYPE_CHECKING:
    from memdecay_adapters.engine.controller import EvictionController

MOST_SESSIONS = 500
"""Listed one by one; agents count all of them."""
MOST_AGENTS = 500


def take_snapshot(
    controller: EvictionController, pool: Any, tenant: str | None = None, *, model: str = ""
) -> EngineSnapshot:
    """Look at the sessions and the pool.

    Args:
        controller: of the engine.
        pool: vLLM's block pool.
        tenant: whose part to show; None: the whole engine, for whoever runs it.
        model: what the user calls the model.
    """
    controller.expire()
    views = [
        SessionView(
            **described,
            turn=state.turn,
            evicted_pages=controller.ledger.summary(state.key).evicted,
            host_pages=None if controller.tier is None else len(controller.tier.catalogue.of(state.key)),
        )
        for state, described in describe_sessions(controller, tenant)
    ]
    agents = _agents(controller, views, tenant)
    total = controller.live.total_of(tenant)
    return EngineSnapshot(
        scope="engine" if tenant is None else "tenant",
        model=model,
        policy=controller.policy.name,
        page_size_tokens=controller.page_size_tokens,
        taken_unix_seconds=time.time(),
        uptime_seconds=round(controller.live.uptime_seconds, 3),
        pool=_pool(controller, pool, views, tenant),
        flow=controller.live.flow(total),
        evictions=total.evictions(),
        agents=tuple(agents[:MOST_AGENTS]),
        agents_left_out=max(len(agents) - MOST_AGENTS, 0),
        sessions=tuple(views[:MOST_SESSIONS]),
        sessions_left_out=max(len(views) - MOST_SESSIONS, 0),
    )


def _pool(controller: EvictionController, pool: Any, views: list[SessionView], tenant: str | None) -> PoolView:
    total = pool.num_gpu_blocks - 1  # without the null page
    if tenant is not None:
        host = None if controller.tier is None else sum(view.host_pages or 0 for view in views)
        return PoolView(total_pages=total, held_pages=sum(view.pages_held for view in views), host_pages=host)
    free = pool.get_num_free_blocks()
    return PoolView(
        total_pages=total,
        held_pages=total - free,
        free_pages=free,
        guaranteed_pages=controller.admission.reserved_pages,
        waiting_requests=controller.admission.waiting_requests,
        host_pages=None if controller.tier is None else len(controller.tier.catalogue),
    )


def _agents(controller: EvictionController, views: list[SessionView], tenant: str | None) -> list[AgentView]:
    tallies = controller.live.of_tenant(tenant)
    by_agent: dict[str, list[SessionView]] = {agent: [] for agent in tallies}
    for view in views:
        by_agent.setdefault(view.agent, []).append(view)
    agents = []
    for agent, mine in by_agent.items():
        held: Counter[str] = Counter()
        for view in mine:
            held.update(view.pages_held_by_region)
        budgets = [view.budget_pages for view in mine if view.budget_pages is not None]
        tally = tallies.get(agent) or LiveTally()
        agents.append(
            AgentView(
                agent=agent,
                running_sessions=sum(view.state == "running" for view in mine),
                idle_sessions=sum(view.state == "idle" for view in mine),
                pages_held=sum(view.pages_held for view in mine),
                pages_held_by_region=dict(held),
                budget_pages=sum(budgets) if mine and len(budgets) == len(mine) else None,
                evictions=tally.evictions(),
                flow=controller.live.flow(tally),
            )
        )
    return sorted(agents, key=lambda view: (-view.pages_held, view.agent))
