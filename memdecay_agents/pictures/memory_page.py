"""A history as one interactive HTML page: no outside parts, nothing fetched; hover, zoom, and regions on and off.

Our own SVG and script, about 30 KB: a general plotting bundle is some 4 MB and still draws no hatches by region and
state. Names come from users: they reach the page as JSON data and are only ever shown as text; the page's own content
security policy lets nothing run but the scripts that are written here.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from memdecay_agents.pictures.charts import SessionChart, session_charts
from memdecay_agents.pictures.files import write_whole
from memdecay_agents.pictures.history import MemoryHistory
from memdecay_agents.pictures.memory_png import priority_curve
from memdecay_agents.pictures.palette import in_usual_order, region_colours, region_hatches

MOST_SESSIONS = 24
"""On one page, the longest ones."""
_STYLES = ("theme.css", "page.css")
_SCRIPTS = ("hatches.js", "plot.js", "page.js")


def web_file(name: str) -> str:
    """One of the files that pages are made of."""
    return resources.files("memdecay_agents.pictures").joinpath("web", name).read_text(encoding="utf-8")


def page_data(history: MemoryHistory, title: str = "") -> dict[str, Any]:
    """All that the page shows, as JSON types."""
    longest = sorted(range(len(history.sessions)), key=lambda number: -history.sessions[number].total_pages)
    charts = session_charts([history.sessions[number] for number in longest[:MOST_SESSIONS]])
    names = [region for chart in charts for region in (*(row.region for row in chart.rows), *_regions(chart))]
    regions = in_usual_order([*names, *(priority.region for priority in history.priorities)])
    colours, hatches = region_colours(regions), region_hatches(regions)
    priorities = []
    for priority in history.priorities:
        ages, values = priority_curve(priority, history)
        priorities.append(
            {
                "region": priority.region,
                "pinned": priority.pinned,
                "ages": [round(age, 3) for age in ages.tolist()],
                "values": [round(value, 6) for value in values.tolist()],
            }
        )
    return {
        "schema_version": 1,
        "title": title or "What each agent kept",
        "about": _about(history, len(charts)),
        "clock_unit": history.clock_unit,
        "decay_form": history.decay_form,
        "regions": [{"name": name, "colour": colours[name], "hatch": hatches[name]} for name in regions],
        "charts": [asdict(chart) for chart in charts],
        "priorities": priorities,
    }


def memory_page(history: MemoryHistory, title: str = "") -> str:
    """The page's HTML."""
    style = "\n".join(web_file(name) for name in _STYLES)
    script = "\n".join(web_file(name).replace('"use strict";\n', "") for name in _SCRIPTS)
    script = f'"use strict";\n{script}'
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        "<title>memdecay: what was kept</title>\n"
        f"<style>{style}</style>\n</head>\n<body>\n"
        '<main id="main"></main>\n<noscript>This page draws with JavaScript.</noscript>\n'
        f'<script type="application/json" id="data">{as_script_data(page_data(history, title))}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def write_memory_page(history: MemoryHistory, path: str | Path, *, title: str = "") -> Path:
    """Write the page.

    Args:
        history: of an engine or a ledger.
        path: where to write; an existing file is replaced.
        title: above the pictures.

    Raises:
        ConfigError: it cannot be written.
    """
    return write_whole(path, memory_page(history, title))


def as_script_data(value: Any) -> str:
    """JSON that stands inside a script element and cannot end it, whatever names it holds."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _regions(chart: SessionChart) -> list[str]:
    return [*chart.memory.held, *chart.evicted_by_region]


def _about(history: MemoryHistory, drawn: int) -> str:
    parts = [history.model, f"policy {history.policy}" if history.policy else "", f"{len(history.sessions)} sessions"]
    if drawn < len(history.sessions):
        parts.append(f"the {drawn} longest are shown")
    return ", ".join(part for part in parts if part)
