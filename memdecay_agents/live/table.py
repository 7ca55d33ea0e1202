"""A snapshot as tables in the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from memdecay_agents.live.snapshot import EngineSnapshot
from memdecay_agents.pictures.palette import in_usual_order, region_colours

_LETTERS = {"system": "S", "plan": "P", "user": "U", "tool_in": "i", "tool_out": "o", "retrieval": "R"}
BAR_CELLS = 24
MOST_ROWS = 20


def snapshot_table(snapshot: EngineSnapshot) -> RenderableType:
    """Agents, sessions and the pool; names are shown as they are, never as markup."""
    parts: list[RenderableType] = [_head(snapshot), _agents(snapshot), _sessions(snapshot)]
    regions = in_usual_order({region for agent in snapshot.agents for region in agent.pages_held_by_region})
    if regions:
        key = Text("regions: ", style="dim")
        for region, colour in region_colours(regions).items():
            key.append(f" {_letter(region)} ", style=f"black on {colour}")
            key.append(f" {plain(region)}  ", style="dim")
        parts.append(key)
    return Group(*parts)


def plain(name: str, most: int = 40) -> str:
    """A name without control characters: it comes from users, and a terminal obeys some of them."""
    shown = "".join(character if character.isprintable() else "?" for character in name)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def counts(by_name: Mapping[str, int]) -> str:
    """``user 3, system 1``."""
    return ", ".join(f"{plain(name)} {count}" for name, count in sorted(by_name.items(), key=lambda item: -item[1]))


def _head(snapshot: EngineSnapshot) -> Text:
    pool, flow = snapshot.pool, snapshot.flow
    words = (
        f"{plain(snapshot.model) or 'engine'}, policy {plain(snapshot.policy)}, up {_time(snapshot.uptime_seconds)}\n"
    )
    words += f"pages of {snapshot.page_size_tokens} tokens: {pool.held_pages} held of {pool.total_pages}"
    if pool.free_pages is not None:
        words += f", {pool.free_pages} free"
    if pool.guaranteed_pages is not None:
        words += f", {pool.guaranteed_pages} guaranteed"
    if pool.host_pages is not None:
        words += f", {pool.host_pages} on the host"
    if pool.waiting_requests:
        words += f"; requests waiting: {pool.waiting_requests}"
    words += (
        f"\n{flow.generated_tokens_per_second:.1f} tokens/s generated, {flow.computed_tokens_per_second:.1f} computed"
    )
    words += f"; {snapshot.evictions.pages} pages evicted"
    if snapshot.evictions.by_reason:
        words += f" ({counts(snapshot.evictions.by_reason)})"
    return Text(words)


def _agents(snapshot: EngineSnapshot) -> Table:
    table = Table(title="agents", title_justify="left", box=None, pad_edge=False)
    for title in ("agent", "sessions", "held, by region", "pages", "budget", "used", "evicted", "tokens/s"):
        table.add_column(title, justify="left" if title in ("agent", "held, by region") else "right")
    most = max((max(agent.pages_held, agent.budget_pages or 0) for agent in snapshot.agents), default=1)
    for agent in snapshot.agents[:MOST_ROWS]:
        use = agent.budget_use
        table.add_row(
            Text(plain(agent.agent)),
            f"{agent.running_sessions}+{agent.idle_sessions}",
            _bar(agent.pages_held_by_region, most),
            str(agent.pages_held),
            "none" if agent.budget_pages is None else str(agent.budget_pages),
            "" if use is None else f"{use:.0%}",
            str(agent.evictions.pages),
            f"{agent.flow.generated_tokens_per_second:.1f}",
        )
    _more(table, len(snapshot.agents) + snapshot.agents_left_out - MOST_ROWS)
    return table


def _sessions(snapshot: EngineSnapshot) -> Table:
    table = Table(title="sessions", title_justify="left", box=None, pad_edge=False)
    for title in ("session", "agent", "state", "turn", "tokens", "pages", "budget", "evicted"):
        table.add_column(title, justify="left" if title in ("session", "agent", "state") else "right")
    for session in snapshot.sessions[:MOST_ROWS]:
        idle = session.state if session.idle_seconds is None else f"idle {_time(session.idle_seconds)}"
        table.add_row(
            Text(plain(session.session, 28)),
            Text(plain(session.agent, 28)),
            idle,
            str(session.turn),
            str(session.tokens),
            str(session.pages_held),
            "none" if session.budget_pages is None else str(session.budget_pages),
            str(session.evicted_pages),
        )
    _more(table, len(snapshot.sessions) + snapshot.sessions_left_out - MOST_ROWS)
    return table


def _more(table: Table, left_out: int) -> None:
    if left_out > 0:
        table.add_row(Text(f"and {left_out} more", style="dim"))


def _bar(by_region: Mapping[str, int], most: int) -> Text:
    """A bar whose cells have the region's colour and letter."""
    bar, total, drawn = Text(), 0, 0
    for region in in_usual_order(by_region):
        total += by_region[region]
        cells = round(total / max(most, 1) * BAR_CELLS) - drawn
        bar.append(_letter(region) * cells, style=f"black on {region_colours([region])[region]}")
        drawn += cells
    return bar


def _letter(region: str) -> str:
    return _LETTERS.get(region, "s" if region == "scratchpad" else plain(region)[:1] or "?")


def _time(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
