"""A matplotlib figure in one of our themes; matplotlib is imported when one is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memdecay_agents.errors import ConfigError
from memdecay_agents.pictures.palette import THEMES, Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MATPLOTLIB_HATCHES = {
    "solid": "", "rising": "////", "falling": "\\\\\\\\", "dots": "....", "horizontal": "----", "cross": "xxxx",
    "vertical": "||||", "grid": "++++", "rings": "oo", "wide_rising": "//", "wide_falling": "\\\\",
}  # fmt: skip


def theme_named(name: str) -> Theme:
    """A theme by its name.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in THEMES:
        raise ConfigError(where="theme", rule=f"unknown {name!r}", remedy=f"Use one of {', '.join(THEMES)}.")
    return THEMES[name]


def new_figure(width_inches: float, height_inches: float, theme: Theme) -> Figure:
    """An empty figure on the theme's ground.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            where="picture", rule="matplotlib is not installed", remedy="Install the extra 'cpu' or 'gpu'."
        ) from error
    figure = Figure(figsize=(width_inches, height_inches), dpi=120, layout="constrained", facecolor=theme.ground)
    FigureCanvasAgg(figure)
    return figure


def thin_hatch(drawn: Any) -> Any:
    """Thin hatch lines, where this matplotlib can (from 3.10); returns what was given."""
    if hasattr(drawn, "set_hatch_linewidth"):
        drawn.set_hatch_linewidth(0.5)
    return drawn


def dress(axes: Axes, theme: Theme, title: str, x_label: str, y_label: str) -> None:
    """Give axes their theme's colours and their words. Words are shown as they are, never as formulas."""
    axes.set_facecolor(theme.ground)
    axes.set_title(title, fontsize=9, color=theme.ink, loc="left", parse_math=False)
    axes.set_xlabel(x_label, fontsize=8, color=theme.ink)
    axes.set_ylabel(y_label, fontsize=8, color=theme.ink)
    axes.tick_params(colors=theme.ink, labelsize=7)
    for spine in axes.spines.values():
        spine.set_color(theme.faint)
