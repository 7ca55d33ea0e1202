"""A figure of lifetime curves and their fits, one panel a region."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from memdecay_agents.calibration.fits import FORMS, decay, fit_decay
from memdecay_agents.calibration.lifetimes import Lifetimes
from memdecay_agents.errors import ConfigError
from memdecay_agents.pictures.palette import region_colours

PUBLISHED_HALF_LIFE_STEPS = {"system": (148.0, 189.0), "scratchpad": (14.0, 16.0)}
"""As published, in decode steps, for 1.5B and 3B models; the other regions' are not given."""


def draw_lifetimes(lifetimes: Lifetimes, path: Path) -> Path:
    """Draw the curves as a PNG: attention by age, both fits, and the published half-lives where the unit is theirs.

    Raises:
        ConfigError: matplotlib is not installed, or no region was seen.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            where="lifetime figure", rule="matplotlib is not installed", remedy="Install the extra 'cpu' or 'gpu'."
        ) from error
    regions = lifetimes.seen_regions
    if not regions:
        raise ConfigError(where="lifetime figure", rule="no region was seen", remedy="Add traces first.")
    columns = min(4, len(regions))
    rows = -(-len(regions) // columns)
    figure = Figure(figsize=(3.3 * columns, 2.6 * rows), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    colours = region_colours(regions)
    for number, region in enumerate(regions):
        axes = figure.add_subplot(rows, columns, number + 1)
        curve = lifetimes.curve(region)
        axes.loglog(curve.age_ticks + 1.0, np.maximum(curve.relative, 1e-4), ".", color=colours[region])
        for form, style in zip(FORMS, ("--", "-"), strict=True):
            fit = fit_decay(curve, form)
            if fit is not None and fit.half_life_ticks is not None:
                fitted = fit.level * decay(form, curve.age_ticks, fit.half_life_ticks)
                label = f"{form} {fit.half_life_ticks:.0f}, R2 {fit.r_squared:.2f}"
                axes.loglog(curve.age_ticks + 1.0, np.maximum(fitted, 1e-4), style, color="#333333", label=label)
        if lifetimes.unit == "decode_steps" and region in PUBLISHED_HALF_LIFE_STEPS:
            low, high = PUBLISHED_HALF_LIFE_STEPS[region]
            axes.axvspan(low, high, color="#D55E00", alpha=0.25, label=f"published {low:.0f}-{high:.0f}")
        axes.set_title(region, fontsize=9)
        axes.tick_params(labelsize=7)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=6)
        if number % columns == 0:
            axes.set_ylabel("relative attention", fontsize=8)
        axes.set_xlabel(f"age + 1, {lifetimes.unit}", fontsize=8)
    figure.savefig(path)
    return path
