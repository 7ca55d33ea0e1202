"""A history as one PNG: each session's retention map and memory, the agents beside each other, budgets, half-lives."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memdecay_agents.calibration.fits import decay
from memdecay_agents.errors import ConfigError
from memdecay_agents.pictures.canvas import MATPLOTLIB_HATCHES, dress, new_figure, theme_named, thin_hatch
from memdecay_agents.pictures.charts import SessionChart, session_charts
from memdecay_agents.pictures.files import write_whole
from memdecay_agents.pictures.history import MemoryHistory, RegionPriority
from memdecay_agents.pictures.palette import (
    EVICTED_OPACITY,
    Theme,
    in_usual_order,
    region_colours,
    region_hatches,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_SESSIONS = 6
"""Drawn in one PNG, the longest ones; the page shows more."""
_HOST_OPACITY = 0.5
_LINES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P")


def draw_memory(history: MemoryHistory, path: str | Path, *, theme: str = "light", title: str = "") -> Path:
    """Draw a history as a PNG.

    Args:
        history: of an engine or a ledger.
        path: where to write; an existing file is replaced.
        theme: "light" or "dark".
        title: above the picture.

    Raises:
        ConfigError: there is no session, no such theme, or matplotlib is not installed.
    """
    colours = theme_named(theme)
    if not history.sessions:
        raise ConfigError(
            where="picture", rule="there is no session to draw", remedy="Give a ledger with evictions, or an export."
        )
    chosen = sorted(history.sessions, key=lambda session: -session.total_pages)[:MOST_SESSIONS]
    charts = session_charts(chosen)
    figure = new_figure(13.0, 3.4 * len(charts) + 3.4, colours)
    grid = figure.add_gridspec(len(charts) + 1, 6)
    for number, chart in enumerate(charts):
        draw_map(figure.add_subplot(grid[number, :4]), chart, colours)
        draw_curve(figure.add_subplot(grid[number, 4:]), chart, colours)
    _draw_agents(figure.add_subplot(grid[-1, :2]), charts, colours)
    _draw_budgets(figure.add_subplot(grid[-1, 2:4]), charts, colours)
    _draw_priorities(figure.add_subplot(grid[-1, 4:]), history, colours)
    left_out = len(history.sessions) - len(charts)
    words = title + (f"  (the {len(charts)} longest sessions; {left_out} more are not drawn)" if left_out else "")
    figure.suptitle(words, fontsize=10, color=colours.ink, parse_math=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor=colours.ground)
    return write_whole(path, buffer.getvalue())


def draw_map(axes: Axes, chart: SessionChart, theme: Theme) -> None:
    """The retention map: a row for each page, time to the right; full where held, faded where evicted."""
    from matplotlib.collections import PolyCollection

    regions = in_usual_order(row.region for row in chart.rows)
    colours, hatches = region_colours(regions), region_hatches(regions)
    size = chart.page_size_tokens
    for region in regions:
        boxes: dict[float, list[Any]] = {}
        for row in chart.rows:
            if row.region == region:
                for start, end, held, evicted, host in row.steps:
                    strength = _strength(held, evicted, host)
                    low, high = row.first_page * size, row.end_page * size
                    boxes.setdefault(strength, []).append([(start, low), (end, low), (end, high), (start, high)])
        for strength, corners in boxes.items():
            is_hatched = strength > _HOST_OPACITY
            axes.add_collection(
                thin_hatch(
                    PolyCollection(
                        corners,
                        facecolor=colours[region],
                        edgecolor=theme.hatch if is_hatched else "none",
                        hatch=MATPLOTLIB_HATCHES[hatches[region]] if is_hatched else "",
                        alpha=strength,
                        linewidth=0,
                    )
                )
            )
    places = [((chart.rows[mark.row].first_page + chart.rows[mark.row].end_page) / 2 * size) for mark in chart.marks]
    axes.plot([mark.at for mark in chart.marks], places, linestyle="none", marker="x", markersize=2.6,
              markeredgewidth=0.7, color=theme.ink)  # fmt: skip
    for at in chart.rewinds:
        axes.axvline(at, color=theme.ink, linestyle=":", linewidth=1)
    axes.set_xlim(0, max(chart.end_at, 1))
    axes.set_ylim(max(chart.pages, 1) * size, 0)
    grouped = f", {chart.pages_per_row} pages a row" if chart.pages_per_row > 1 else ""
    dress(axes, theme, f"{_short(chart.name)}: kept over time{grouped}; x: left the cache", "tokens computed",
          "token position")  # fmt: skip
    _legend(axes, regions, theme, any(mark.reason == "swapped_out" for mark in chart.marks))


def draw_curve(axes: Axes, chart: SessionChart, theme: Theme) -> None:
    """Tokens in the cache over time, by region, against the whole trace and the budget."""
    regions = in_usual_order(chart.memory.held)
    colours, hatches = region_colours(regions), region_hatches(regions)
    at = np.asarray(chart.memory.at)
    below = np.zeros(at.size)
    for region in regions:
        above = below + np.asarray(chart.memory.held[region])
        thin_hatch(axes.fill_between(at, below, above, step="post", facecolor=colours[region], linewidth=0,
                                     edgecolor=theme.hatch, hatch=MATPLOTLIB_HATCHES[hatches[region]]))  # fmt: skip
        below = above
    axes.step(at, chart.memory.trace, where="post", color=theme.faint, linewidth=1, label="whole trace")
    axes.step(at, below, where="post", color=theme.ink, linewidth=1.4, label="held")
    if any(chart.memory.host):
        axes.step(at, below + np.asarray(chart.memory.host), where="post", color=theme.ink, linestyle=":",
                  linewidth=1.2, label="held and on the host")  # fmt: skip
    if chart.budget_tokens is not None:
        axes.axhline(chart.budget_tokens, color=theme.budget, linestyle="--", linewidth=1.2, label="budget")
    axes.set_xlim(0, max(chart.end_at, 1))
    axes.set_ylim(bottom=0)
    dress(axes, theme, "memory over time", "tokens computed", "tokens in the cache")
    _key(axes, theme)


def _draw_agents(axes: Axes, charts: Sequence[SessionChart], theme: Theme) -> None:
    colours = list(region_colours(["user", "system", "tool_out", "plan", "retrieval", "scratchpad"]).values())
    for number, chart in enumerate(charts):
        held = np.sum([np.asarray(column) for column in chart.memory.held.values()], axis=0)
        axes.step(chart.memory.at, held, where="post", color=colours[number], linestyle=_LINES[number % len(_LINES)],
                  marker=_MARKERS[number], markevery=max(len(held) // 6, 1), markersize=4, linewidth=1.3,
                  label=_short(chart.name))  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    dress(axes, theme, "memory by agent", "tokens computed", "tokens held")
    _key(axes, theme)


def _draw_budgets(axes: Axes, charts: Sequence[SessionChart], theme: Theme) -> None:
    places = np.arange(len(charts))
    held = [sum(chart.held_at_end.values()) for chart in charts]
    peak = [chart.peak_tokens for chart in charts]
    axes.barh(places, peak, height=0.62, facecolor="none", edgecolor=theme.ink, linewidth=1, label="most")
    axes.barh(places, held, height=0.36, color="#0072B2", label="at the end")
    known = [(place, chart.budget_tokens) for place, chart in enumerate(charts) if chart.budget_tokens is not None]
    if known:
        axes.plot([budget for _, budget in known], [place for place, _ in known], linestyle="none", marker="|",
                  markersize=22, markeredgewidth=2.4, color=theme.budget, label="budget")  # fmt: skip
    axes.set_yticks(places, [_short(chart.name) for chart in charts], parse_math=False)
    axes.set_ylim(len(charts) - 0.4, -0.6)
    dress(axes, theme, "budget use", "tokens held", "")
    _key(axes, theme)


def _draw_priorities(axes: Axes, history: MemoryHistory, theme: Theme) -> None:
    regions = [priority.region for priority in history.priorities]
    colours = region_colours(regions)
    for number, priority in enumerate(history.priorities):
        ages, values = priority_curve(priority, history)
        axes.plot(ages, values, color=colours[priority.region], linestyle=_LINES[number % len(_LINES)], linewidth=1.6,
                  marker=_MARKERS[number % len(_MARKERS)], markevery=8 + number, markersize=4,
                  label=priority.region + (" (pinned)" if priority.pinned else ""))  # fmt: skip
    axes.set_ylim(bottom=0)
    dress(axes, theme, f"priority by age ({history.decay_form.replace('_', ' ')})", f"age, {history.clock_unit}",
          "priority" if regions else "priority (not in the ledger)")  # fmt: skip
    _key(axes, theme)


def longest_age(history: MemoryHistory) -> float:
    """Where the curves of priority by age end, in ticks: four times the longest half-life."""
    return 4.0 * max([1.0, *(p.half_life_ticks for p in history.priorities if p.half_life_ticks is not None)])


def priority_curve(priority: RegionPriority, history: MemoryHistory) -> tuple[np.ndarray, np.ndarray]:
    """Ages in ticks and the region's priority at them, float64 [49] each."""
    ages = np.linspace(0.0, longest_age(history), 49)
    if priority.half_life_ticks is None:
        return ages, np.full(ages.shape, priority.base_priority)
    return ages, priority.base_priority * decay(history.decay_form, ages, priority.half_life_ticks)


def _strength(held: int, evicted: int, host: int) -> float:
    """Opacity by the shares of a row's pages; steps of a sixteenth, so that there are few different ones."""
    total = held + evicted + host
    share = (held + _HOST_OPACITY * host + EVICTED_OPACITY * evicted) / total
    return round(share * 16) / 16 if 0 < held < total else round(share, 3)


def _short(name: str) -> str:
    shown = "".join(character if character.isprintable() else "?" for character in name)
    return shown if len(shown) <= 32 else shown[:31] + "…"


def _key(axes: Axes, theme: Theme) -> None:
    if axes.get_legend_handles_labels()[0]:
        legend = axes.legend(fontsize=6, facecolor=theme.ground, edgecolor=theme.faint, labelcolor=theme.ink)
        for text in legend.get_texts():
            text.set_parse_math(False)


def _legend(axes: Axes, regions: Sequence[str], theme: Theme, with_host: bool) -> None:
    from matplotlib.patches import Patch

    colours, hatches = region_colours(regions), region_hatches(regions)
    handles = [
        thin_hatch(Patch(facecolor=colours[region], edgecolor=theme.hatch, linewidth=0, label=region,
                         hatch=MATPLOTLIB_HATCHES[hatches[region]]))
        for region in regions
    ]  # fmt: skip
    handles.append(Patch(facecolor=theme.faint, alpha=EVICTED_OPACITY, label="faded: evicted"))
    if with_host:
        handles.append(Patch(facecolor=theme.faint, alpha=_HOST_OPACITY, label="half: on the host"))
    axes.legend(handles=handles, fontsize=6, loc="lower left", facecolor=theme.ground, edgecolor=theme.faint,
                labelcolor=theme.ink, ncols=2)  # fmt: skip
