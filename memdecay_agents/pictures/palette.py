"""Region colours that colour-blind readers can tell apart (Okabe and Ito, 2008), on light and dark ground."""

from __future__ import annotations

from collections.abc import Iterable

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
BACKGROUND = "#FFFFFF"
EVICTED_OPACITY = 0.16
"""How much of its region's colour an evicted page keeps."""


def region_colours(regions: Iterable[str]) -> dict[str, str]:
    """A colour for each region, ``#RRGGBB``; custom regions share a few more."""
    colours, spare = {}, 0
    for region in regions:
        if region in _FIXED:
            colours[region] = _FIXED[region]
        else:
            colours[region] = _SPARE[spare % len(_SPARE)]
            spare += 1
    return colours
