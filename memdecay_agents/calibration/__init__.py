"""Attention lifetimes by region: measured, fitted, kept in a profile file that the configuration loads.

recordings, or a live engine -> lifetimes (mean attention by region and age) -> fits -> profiles (YAML) -> config
"""

from memdecay_agents.calibration.fits import Fit, fit_decay
from memdecay_agents.calibration.lifetimes import UNITS, LifetimeCurve, Lifetimes
from memdecay_agents.calibration.profiles import ContextProfile, ProfileFile, RegionCalibration, calibrate

__all__ = [
    "UNITS",
    "ContextProfile",
    "Fit",
    "LifetimeCurve",
    "Lifetimes",
    "ProfileFile",
    "RegionCalibration",
    "calibrate",
    "fit_decay",
]
