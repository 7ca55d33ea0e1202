"""Region colours that colour-blind readers can tell apart (Okabe and Ito, 2008), and a hatch beside each.

A region is told by colour and hatch, a state by strength and marks: nothing is told by colour alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

_FIXED = {
    "system": "#D55E00",
    "plan": "#CC79A7",
    "user": "#0072B2",
    "tool_in": "#F0E442",
    "tool_out": "#009E73",
    "retrieval": "#56B4E9",
    "scratchpad": "#999999",
}
_SPARE = ("#E69F00", "#8B5A2B", "#6A3D9A", "#B15928")
_FIXED_HATCHES = {
    "system": "solid",
    "plan": "rising",
    "user": "falling",
    "tool_in": "dots",
    "tool_out": "horizontal",
    "retrieval": "cross",
    "scratchpad": "vertical",
}
_SPARE_HATCHES = ("grid", "rings", "wide_rising", "wide_falling")
UNKNOWN_REGION = "(unknown)"
"""Tokens whose region nobody wrote down: a ledger names only the pages that left."""

BACKGROUND = "#FFFFFF"
EVICTED_OPACITY = 0.16
"""How much of its region's colour an evicted page keeps."""


class Theme(NamedTuple):
    """Colours of everything that is no region, ``#RRGGBB``."""

    ground: str
    ink: str
    """Text, axes, eviction marks."""
    faint: str
    """Grid lines and the whole trace."""
    budget: str
    hatch: str
    """Lines inside a region's colour."""


THEMES = {
    "light": Theme(BACKGROUND, "#1A1A1A", "#6B6B6B", "#B03A00", "#222222"),
    "dark": Theme("#16181C", "#ECECEC", "#A0A4AA", "#FFB37A", "#0C0D0F"),
}


def region_colours(regions: Iterable[str]) -> dict[str, str]:
    """A colour for each region, ``#RRGGBB``; custom regions share a few more."""
    colours, spare = {}, 0
    for region in regions:
        if region in _FIXED:
            colours[region] = _FIXED[region]
        elif region == UNKNOWN_REGION:
            colours[region] = "#B8B8B8"
        else:
            colours[region] = _SPARE[spare % len(_SPARE)]
            spare += 1
    return colours


def region_hatches(regions: Iterable[str]) -> dict[str, str]:
    """The name of a hatch for each region; custom regions share a few more."""
    hatches, spare = {}, 0
    for region in regions:
        if region in _FIXED_HATCHES:
            hatches[region] = _FIXED_HATCHES[region]
        elif region == UNKNOWN_REGION:
            hatches[region] = "solid"
        else:
            hatches[region] = _SPARE_HATCHES[spare % len(_SPARE_HATCHES)]
            spare += 1
    return hatches


def in_usual_order(regions: Iterable[str]) -> list[str]:
    """The seven default regions in their own order, then custom ones by name, then what is unknown."""
    order = {name: number for number, name in enumerate(_FIXED)}
    return sorted(set(regions), key=lambda name: (name == UNKNOWN_REGION, order.get(name, len(order)), name))
