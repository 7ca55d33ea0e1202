"""Snapshots and histories that are made up, with names that try to run."""

from __future__ import annotations

from memdecay_agents import MemDecayConfig
from memdecay_agents.live import AgentView, EngineSnapshot, Evictions, Flow, PoolView, SessionView
from memdecay_agents.pictures import MemoryHistory, SessionHistory
from memdecay_agents.pictures.history import PageEvent, PageRun, priorities_of

HOSTILE = "\x1b[31m<img src=x onerror=alert(1)></script><script>alert(2)</script>"
PAGE = 16


def snapshot(held: int = 9) -> EngineSnapshot:
    agents, sessions = [], []
    for name, by_region, budget in (("clerk", {"system": 2, "user": held - 2}, 12), (HOSTILE, {HOSTILE: 3}, None)):
        pages = sum(by_region.values())
        agents.append(
            AgentView(
                agent=name, running_sessions=1, idle_sessions=0, pages_held=pages, pages_held_by_region=by_region,
                budget_pages=budget, evictions=Evictions(pages=4, by_region={"user": 4}, by_reason={"over_budget": 4}),
                flow=Flow(generated_tokens=10, generated_tokens_per_second=2.5),
            )
        )  # fmt: skip
        sessions.append(
            SessionView(
                session=f"thread of {name}", agent=name, state="running", idle_seconds=None, turn=2, tokens=400,
                page_size_tokens=PAGE, pages_held=pages, pages_held_by_region=by_region, budget_pages=budget,
                evicted_pages=4,
            )
        )  # fmt: skip
    return EngineSnapshot(
        scope="engine", model=HOSTILE, policy="memdecay", page_size_tokens=PAGE, taken_unix_seconds=0.0,
        uptime_seconds=75.0, pool=PoolView(total_pages=64, held_pages=held + 3, free_pages=52 - held),
        flow=Flow(generated_tokens=20, generated_tokens_per_second=5.0),
        evictions=Evictions(pages=8, by_region={"user": 8}, by_reason={"over_budget": 8}), agents=tuple(agents),
        sessions=tuple(sessions),
    )  # fmt: skip


def history() -> MemoryHistory:
    """Forty pages of the clerk, of which a few left, one to the host and back; and one page of a hostile name."""
    about = {"region": "user", "regions": {"user": PAGE}, "turn": 1}
    events = [
        PageEvent(page=page, at_tokens=320 + 16 * page, reason="over_budget", score=0.5, **about)
        for page in range(4, 16)
    ]
    events.append(PageEvent(page=17, at_tokens=592, reason="swapped_out", **about))
    events.append(PageEvent(page=17, at_tokens=624, reason="swapped_in", **about))
    runs = (
        PageRun(first=0, end=2, region="system"), PageRun(first=2, end=20, region="user"),
        PageRun(first=20, end=40, region="tool_out"),
    )  # fmt: skip
    clerk = SessionHistory(
        session="t/th/clerk/", agent="clerk", page_size_tokens=PAGE, computed_tokens=640, budget_tokens=448,
        regions=runs, held=((0, 4), (16, 40)), events=tuple(events),
    )  # fmt: skip
    hostile = SessionHistory(
        session=f"t/{HOSTILE}/", agent=HOSTILE, page_size_tokens=PAGE, computed_tokens=16,
        regions=(PageRun(first=0, end=1, region=HOSTILE),), held=((0, 1),),
    )  # fmt: skip
    return MemoryHistory(model=HOSTILE, priorities=priorities_of(MemDecayConfig.paper()), sessions=(clerk, hostile))
