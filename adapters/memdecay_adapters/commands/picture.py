"""``memdecay picture``: a ledger or a session export as a PNG and an interactive page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from memdecay_agents.pictures import MemoryHistory


def picture(
    source: Annotated[
        Path, typer.Argument(help="A ledger (ledger.jsonl) or a session export (engine.history().save(...)).")
    ],
    html: Annotated[Path | None, typer.Option(help="The page to write; default: beside the source.")] = None,
    png: Annotated[Path | None, typer.Option(help="The picture to write; default: beside the source.")] = None,
    theme: Annotated[str, typer.Option(help="Of the PNG: light or dark; the page follows its reader's setting.")] = (
        "light"
    ),
    agent: Annotated[list[str] | None, typer.Option(help="Only this agent's sessions (repeat); default: all.")] = None,
    budget: Annotated[
        int | None, typer.Option(min=1, help="For a ledger, which names no budget: what it was, in tokens.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="For a ledger: a profile (memdecay calibrate) whose half-lives are drawn.")
    ] = None,
    title: Annotated[str, typer.Option(help="Above the pictures.")] = "",
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="[FILE]", help="Write the files' names and the totals as JSON ('-': stdout)."),
    ] = None,
) -> None:
    """Draw what each agent kept over time: a picture (PNG) and a page to look around in (HTML, one file).

    With --html or --png only that one is written.
    """
    from rich.console import Console

    from memdecay_agents.config import MemDecayConfig
    from memdecay_agents.pictures.files import write_whole
    from memdecay_agents.pictures.loading import load_history, only_agents
    from memdecay_agents.pictures.memory_page import write_memory_page
    from memdecay_agents.pictures.memory_png import draw_memory

    config = MemDecayConfig.from_profile(profile) if profile is not None else None
    history = only_agents(load_history(source, config, budget_tokens=budget), list(agent or ()))
    if html is None and png is None:
        html, png = source.with_suffix(".html"), source.with_suffix(".png")
    written: dict[str, str] = {}
    if png is not None:
        written["png_file"] = str(draw_memory(history, png, theme=theme, title=title or source.name))
    if html is not None:
        written["html_file"] = str(write_memory_page(history, html, title=title or source.name))
    if json_file is not None:
        told = {"schema_version": 1, "command": "picture", **written, "sessions": _totals(history)}
        text = json.dumps(told, indent=1)
        if str(json_file) == "-":
            typer.echo(text)
        else:
            write_whole(json_file, text + "\n")
    console = Console(stderr=True, highlight=False)
    for path in written.values():
        console.print(f"wrote {path}", soft_wrap=True, markup=False)


def _totals(history: MemoryHistory) -> list[dict[str, Any]]:
    from memdecay_agents.pictures.charts import session_chart

    charts = [(session, session_chart(session)) for session in history.sessions]
    return [
        {
            "session": chart.session,
            "agent": session.agent,
            "page_size_tokens": chart.page_size_tokens,
            "budget_tokens": chart.budget_tokens,
            "pages": chart.pages,
            "pages_left": sum(chart.evicted_by_region.values()),
            "pages_left_by_region": chart.evicted_by_region,
            "events_by_reason": chart.events_by_reason,
            "tokens_held_at_end": sum(chart.held_at_end.values()),
            "peak_tokens": chart.peak_tokens,
        }
        for session, chart in charts
    ]
