"""Exponential and power-law decay, fitted to a lifetime curve in the logarithm."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np

from memdecay_agents.calibration.lifetimes import LifetimeCurve

DecayForm = Literal["exponential", "power_law"]
FORMS: tuple[DecayForm, ...] = ("exponential", "power_law")
FEWEST_AGES = 4
_FLOOR = 1e-6


class Fit(NamedTuple):
    """level * 2 ** (-age / h), or level / (1 + age / h)."""

    form: DecayForm
    half_life_ticks: float | None
    """h; None: no decay was found within the ages that were seen."""
    level: float
    """Relative attention at age 0."""
    r_squared: float
    """Part of the logarithm's variance that is explained, at most 1."""


def decay(form: DecayForm, age_ticks: np.ndarray, half_life_ticks: float | np.ndarray) -> np.ndarray:
    """g(age), 1 at age 0; float64 of the shape that ages and half-lives broadcast to."""
    if form == "exponential":
        return np.asarray(np.exp2(-age_ticks / half_life_ticks))
    return np.asarray(1.0 / (1.0 + age_ticks / half_life_ticks))


def fit_decay(curve: LifetimeCurve, form: DecayForm) -> Fit | None:
    """Fit one form to a curve; None where fewer than four ages were seen.

    Each bin counts by the square root of its pairs, so that the many young tokens do not decide alone. The half-life is
    looked for between a hundredth of the youngest and a hundred times the oldest age.
    """
    if curve.age_ticks.size < FEWEST_AGES:
        return None
    age, weight = curve.age_ticks, np.sqrt(curve.weight)
    target = np.log(np.maximum(curve.relative, _FLOOR))
    oldest = float(age.max())
    candidates = np.geomspace(max(float(age.min()), 1.0) / 100.0, max(oldest, 1.0) * 100.0, 801)
    shapes = np.log(np.maximum(decay(form, age[None, :], candidates[:, None]), 1e-300))
    levels = ((target - shapes) * weight).sum(1) / weight.sum()
    errors = ((target - shapes - levels[:, None]) ** 2 * weight).sum(1)
    best = int(np.argmin(errors))
    mean = (target * weight).sum() / weight.sum()
    spread = float(((target - mean) ** 2 * weight).sum())
    r_squared = 1.0 - float(errors[best]) / spread if spread > 0 else 1.0
    flat = float(decay(form, np.asarray([oldest]), float(candidates[best]))[0]) > 0.5**0.1
    return Fit(
        form,
        None if flat else float(candidates[best]),
        math.exp(float(levels[best])),
        r_squared,
    )
