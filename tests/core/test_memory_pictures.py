"""The page and the picture of a memory history: what is drawn, in which colours, and nothing that could run."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from played_sessions import SIZE, Played, entry

from memdecay_agents import MemDecayConfig
from memdecay_agents.errors import ConfigError
from memdecay_agents.pictures import MemoryHistory, draw_memory, write_memory_page
from memdecay_agents.pictures.history import PageRun, SessionHistory, events_of, priorities_of
from memdecay_agents.pictures.memory_page import page_data
from memdecay_agents.pictures.palette import THEMES, UNKNOWN_REGION, in_usual_order, region_colours, region_hatches

HOSTILE = "</script><script>alert(1)</script> & $\\frac{1}{$ \u2028"


def history() -> MemoryHistory:
    session = Played(2, 40, 12).history()
    hostile = session.model_copy(update={"agent": HOSTILE, "session": f"t/{HOSTILE}/a/"})
    return MemoryHistory(model=HOSTILE, priorities=priorities_of(MemDecayConfig()), sessions=(session, hostile))


def test_the_page_carries_the_charts_and_nothing_that_names_could_run(tmp_path):
    text = write_memory_page(history(), tmp_path / "page.html", title=HOSTILE).read_text()
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 2
    data = json.loads(scripts[0])
    assert data == json.loads(json.dumps(page_data(history(), HOSTILE)))
    assert data["title"] == HOSTILE
    assert "alert" not in text.replace(scripts[0], "")
    assert "<" not in scripts[0]
    assert not re.search(r"""(src|href)\s*=|@import|url\((?!#)""", text.replace(scripts[1], "")), "nothing from outside"
    assert "unsafe" not in text.split("</head>")[0]
    assert len(text) < 200_000


@pytest.mark.parametrize("theme", sorted(THEMES))
def test_the_picture_has_its_themes_ground_and_full_colour_only_where_pages_are_held(tmp_path, theme):
    from matplotlib.image import imread

    def picture(held: bool) -> np.ndarray:
        events = () if held else events_of([entry(page, 640, region="tool_out") for page in range(38)])
        session = SessionHistory(
            session="s", agent=HOSTILE, page_size_tokens=SIZE, computed_tokens=1280, events=events,
            regions=(PageRun(first=0, end=80, region="tool_out"),),
        )  # fmt: skip
        path = draw_memory(MemoryHistory(sessions=(session,)), tmp_path / "a.png", theme=theme)
        return (imread(path)[:, :, :3] * 255).round().astype(int)

    def share(image: np.ndarray, colour: str) -> float:
        wanted = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])
        return float((np.abs(image - wanted).max(-1) <= 2).mean())

    whole, less = picture(True), picture(False)
    green = region_colours(["tool_out"])["tool_out"]
    assert share(whole, green) > 1.15 * share(less, green) > 0.02
    assert share(whole, THEMES[theme].ground) > 0.3


def test_nothing_to_draw_and_unknown_themes_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no session"):
        draw_memory(MemoryHistory(), tmp_path / "a.png")
    with pytest.raises(ConfigError, match="light, dark"):
        draw_memory(history(), tmp_path / "a.png", theme="blue")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_memory_page(history(), tmp_path / "missing" / "a.html")


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", sorted(THEMES))
def test_words_can_be_read_on_their_ground(theme):
    colours = THEMES[theme]
    assert contrast(colours.ink, colours.ground) >= 7
    assert contrast(colours.faint, colours.ground) >= 4.5
    assert contrast(colours.budget, colours.ground) >= 4.5


def test_no_region_is_told_by_its_colour_alone():
    names = ["system", "plan", "user", "tool_in", "tool_out", "retrieval", "scratchpad", "notes", "legal"]
    assert len(set(region_hatches(names).values())) == len(names)
    assert in_usual_order(["notes", UNKNOWN_REGION, "user", "system"]) == ["system", "user", "notes", UNKNOWN_REGION]
