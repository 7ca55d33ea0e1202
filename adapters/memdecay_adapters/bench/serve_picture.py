"""The growth of the decode step with the trace, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memdecay_agents.errors import ConfigError

_COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#E69F00")


def draw_growth(curves: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Draw step time over trace length, for stock vLLM and each budget, with intervals; PNG or SVG by the name.

    Args:
        curves: points by budget in tokens, as ``step_growth`` of the JSON file holds them.
        path: where to write; an existing file is replaced.

    Raises:
        ConfigError: no curves, or matplotlib is not installed.
    """
    if not curves:
        raise ConfigError(
            where="--plot", rule="the growth curve was not measured", remedy="Measure the parts lengths-... too."
        )
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            where="--plot", rule="matplotlib is not installed", remedy="Install the extra 'cpu' or 'gpu'."
        ) from error
    figure = Figure(figsize=(7.0, 4.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    first = next(iter(curves.values()))
    _curve(axes, first, "stock_vs_short", "stock vLLM", "#D55E00", "s--")
    for (budget, points), colour in zip(curves.items(), _COLOURS, strict=False):
        _curve(axes, points, "ours_vs_short", f"budget of {budget} tokens", colour, "o-")
    axes.axhline(1.0, color="#999999", linewidth=0.8)
    axes.set_xlabel("trace length, tokens")
    axes.set_ylabel("decode step / stock vLLM's at the short context")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def _curve(axes: Any, points: Sequence[Mapping[str, Any]], key: str, label: str, colour: str, style: str) -> None:
    tokens = [point["tokens"] for point in points]
    middle = [point[key]["median"] for point in points]
    below = [point[key]["median"] - point[key]["interval"][0] for point in points]
    above = [point[key]["interval"][1] - point[key]["median"] for point in points]
    axes.errorbar(tokens, middle, yerr=(below, above), fmt=style, color=colour, label=label, capsize=3, markersize=4)
