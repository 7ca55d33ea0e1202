"""Figures: survival by policy and place as a PNG, and everything on one HTML page without outside parts."""

from __future__ import annotations

import base64
import html
import io
from pathlib import Path

from memdecay_agents.errors import ConfigError
from memdecay_agents.evaluation.cells import places
from memdecay_agents.evaluation.report import (
    PUBLISHED,
    EvaluationResult,
    Table,
    comparison_table,
    region_table,
    survival_table,
)
from memdecay_agents.evaluation.statistics import proportion

_COLOURS = {
    "full": "#555555", "random": "#BBBBBB", "recency": "#E69F00", "accumulated_attention": "#56B4E9",
    "last_query": "#009E73", "key_norm": "#CC79A7", "paper": "#0072B2", "memdecay": "#D55E00",
}  # fmt: skip


def survival_figure(result: EvaluationResult, stage: str = "replay") -> bytes:
    """A PNG: one panel a place, one bar a pinned policy, unpinned regions, 95 % intervals.

    Raises:
        ConfigError: matplotlib is not installed, or there is nothing to draw.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            where="evaluation figure", rule="matplotlib is not installed", remedy="Install the extra 'cpu' or 'gpu'."
        ) from error
    found = places(result.outcomes, stage, degenerate=True)
    if not found:
        raise ConfigError(
            where="evaluation figure", rule="nothing was evaluated under a budget", remedy="Give --budgets."
        )
    fair = set(places(result.outcomes, stage))
    columns = min(3, len(found))
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(4.2 * columns, 2.7 * rows), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    for number, place in enumerate(found):
        axes = figure.add_subplot(rows, columns, number + 1)
        for policy, colour in _COLOURS.items():
            mine = [
                o
                for o in result.outcomes
                if o.stage == stage and o.policy == policy and o.region != "system"
                and (o.source, o.length) == place[:2]
                and (policy == "full" or (o.budget == place.budget and o.pinned))
            ]  # fmt: skip
            if mine:
                rate = proportion(sum(o.survived for o in mine), len(mine))
                spread = [[max(rate.value - rate.low, 0.0)], [max(rate.high - rate.value, 0.0)]]
                axes.bar(policy, rate.value, color=colour, yerr=spread, capsize=2)
        axes.set_title(
            f"{place.source} {place.length}, budget {place.budget:.0%}" + ("" if place in fair else " (degenerate)"),
            fontsize=8,
        )
        axes.set_ylim(0, 1)
        axes.tick_params(labelsize=7)
        axes.tick_params(axis="x", labelrotation=60)
        if number % columns == 0:
            axes.set_ylabel("unpinned facts kept", fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def write_figures(result: EvaluationResult, folder: Path) -> list[Path]:
    """Write ``survival.png`` and ``evaluation.html`` into a folder.

    Raises:
        ConfigError: matplotlib is not installed, or there is nothing to draw.
    """
    folder.mkdir(parents=True, exist_ok=True)
    picture = survival_figure(result)
    png, page = folder / "survival.png", folder / "evaluation.html"
    png.write_bytes(picture)
    page.write_text(_page(result, picture), encoding="utf-8")
    return [png, page]


def _page(result: EvaluationResult, picture: bytes) -> str:
    agreement = result.replay_agreement
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>memdecay evaluation</title>",
        "<style>body{font:14px sans-serif;margin:2em}table{border-collapse:collapse;margin:1em 0}"
        "td,th{border:1px solid #ccc;padding:3px 8px;text-align:left}</style>",
        "<h1>What is kept under a budget</h1>",
        f"<p>{html.escape(str(result.about.get('factorisation', '')))}</p><p>{html.escape(PUBLISHED)}</p>",
        f"<p><img alt='survival' src='data:image/png;base64,{base64.b64encode(picture).decode()}'></p>",
    ]
    policies = list(dict.fromkeys((o.policy, o.pinned) for o in result.outcomes))
    for stage in ("replay", "verify"):
        if any(o.stage == stage for o in result.outcomes):
            parts += [
                f"<h2>{stage}</h2><p>System facts; other facts: survived of all (right of asked). * degenerate: pinned "
                "and protected pages fill more than half of the budget.</p>",
                _html(survival_table(result.outcomes, stage)),
                "<h3>Unpinned facts, against the best baseline with pins</h3>",
                _html(comparison_table(result.outcomes, stage)),
                "<h3>By region, all places that are not degenerate</h3>",
                _html(region_table(result.outcomes, stage, policies)),
            ]
    if agreement is not None:
        parts.append(f"<p>Replay and verification agree on {agreement:.1%} of the facts.</p>")
    return "\n".join(parts)


def _html(table: Table) -> str:
    titles, rows = table
    head = "".join(f"<th>{html.escape(title)}</th>" for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
