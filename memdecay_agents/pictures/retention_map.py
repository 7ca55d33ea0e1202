"""The retention map: token position by time, coloured by region, evicted pages faded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memdecay_agents.errors import ConfigError
from memdecay_agents.pictures.palette import EVICTED_OPACITY, region_colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class RetentionColumn:
    """One moment of an agent's memory: the pages of its prompt and which of them were held."""

    label: str
    runs: Sequence[tuple[int, int, str, bool]]
    """First page, one past the last, region, held."""
    page_size_tokens: int
    budget_tokens: int | None = None


def draw_retention_map(columns: Sequence[RetentionColumn], path: str | Path, *, title: str = "") -> Path:
    """Draw the map as a PNG.

    Args:
        columns: in time order.
        path: where to write; an existing file is replaced.
        title: above the picture.

    Raises:
        ConfigError: no columns, or matplotlib is not installed.
    """
    if not columns:
        raise ConfigError(where="retention map", rule="there is nothing to draw", remedy="Give at least one column.")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            where="retention map", rule="matplotlib is not installed", remedy="Install the extra 'cpu' or 'gpu'."
        ) from error
    figure = Figure(figsize=(max(6.0, 1.2 + 0.62 * len(columns)), 6.4), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, height_ratios=[4, 1], sharex=True)
    regions = list(dict.fromkeys(region for column in columns for _, _, region, _ in column.runs))
    colours = region_colours(regions)
    _draw_pages(above, columns, colours)
    _draw_memory(below, columns)
    below.set_xticks(range(len(columns)), [column.label for column in columns], rotation=60, ha="right", fontsize=7)
    _legend(above, colours)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path)
    return Path(path)


def _draw_pages(axes: Axes, columns: Sequence[RetentionColumn], colours: dict[str, str]) -> None:
    for index, column in enumerate(columns):
        for first, end, region, held in column.runs:
            size = column.page_size_tokens
            axes.bar(
                index,
                (end - first) * size,
                bottom=first * size,
                width=0.92,
                color=colours[region],
                alpha=1.0 if held else EVICTED_OPACITY,
                linewidth=0,
            )
    axes.invert_yaxis()
    axes.set_ylabel("token position (0 at the top)")
    axes.set_xlim(-0.6, len(columns) - 0.4)


def _draw_memory(axes: Axes, columns: Sequence[RetentionColumn]) -> None:
    held = [_tokens(column, held_only=True) for column in columns]
    total = [_tokens(column, held_only=False) for column in columns]
    places = np.arange(len(columns))
    axes.step(places, total, where="mid", color="#555555", linewidth=1, label="whole trace")
    axes.step(places, held, where="mid", color="#0072B2", linewidth=2, label="held")
    budgets = [column.budget_tokens if column.budget_tokens is not None else np.nan for column in columns]
    if not np.isnan(budgets).all():
        axes.step(places, budgets, where="mid", color="#D55E00", linestyle="--", linewidth=1, label="budget")
    axes.set_ylabel("tokens")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7, loc="upper left")


def _tokens(column: RetentionColumn, *, held_only: bool) -> int:
    return sum((end - first) * column.page_size_tokens for first, end, _, held in column.runs if held or not held_only)


def _legend(axes: Axes, colours: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(facecolor=colour, label=region) for region, colour in colours.items()]
    handles.append(Patch(facecolor="#555555", alpha=EVICTED_OPACITY, label="faded: evicted"))
    axes.legend(handles=handles, fontsize=7, loc="upper left", bbox_to_anchor=(1.005, 1.0), frameon=False)
