"""The retention map shows each page in its region's colour, faded where it was evicted."""

from __future__ import annotations

import builtins
import sys

import numpy as np
import pytest

from memdecay_agents.errors import ConfigError
from memdecay_agents.pictures import RetentionColumn, draw_retention_map
from memdecay_agents.pictures.palette import region_colours

COLUMNS = [
    RetentionColumn("1 planner", [(0, 2, "system", True), (2, 6, "tool_out", True)], 16, budget_tokens=64),
    RetentionColumn("2 answer", [(0, 2, "system", True), (2, 6, "tool_out", False)], 16),
]


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def pixels(path) -> np.ndarray:
    from matplotlib.image import imread

    return (imread(path)[:, :, :3] * 255).round().astype(int)


def share(picture: np.ndarray, colour: str) -> float:
    return float((np.abs(picture - np.array(rgb(colour))).max(-1) <= 2).mean())


def test_held_pages_are_full_colour_and_evicted_ones_are_not(tmp_path):
    green = region_colours(["tool_out"])["tool_out"]
    both = pixels(draw_retention_map(COLUMNS, tmp_path / "a.png", title="title"))
    held = pixels(draw_retention_map([COLUMNS[0], COLUMNS[0]], tmp_path / "b.png"))
    gone = pixels(draw_retention_map([COLUMNS[1], COLUMNS[1]], tmp_path / "c.png"))
    assert share(held, green) > 1.5 * share(both, green) > share(gone, green)


def test_regions_have_different_colours_and_custom_ones_too():
    names = ["system", "plan", "user", "tool_in", "tool_out", "retrieval", "scratchpad", "notes", "legal"]
    assert len(set(region_colours(names).values())) == len(names)


def test_nothing_to_draw_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="nothing to draw"):
        draw_retention_map([], tmp_path / "a.png")


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    real_import = builtins.__import__

    def without(name: str, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    for module in [name for name in sys.modules if name.startswith("matplotlib.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match="extra 'cpu'"):
        draw_retention_map(COLUMNS, tmp_path / "a.png")
