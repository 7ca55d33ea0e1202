"""Names of the array types that the core passes around: numpy only, one dtype for each purpose."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float32]
"""Masses, scores and ranks."""

IndexArray: TypeAlias = npt.NDArray[np.int64]
"""Token or page indices, and clock ticks."""

RegionArray: TypeAlias = npt.NDArray[np.int8]
"""Region indices as given by ``MemDecayConfig.region_index``, or span flags."""

BoolArray: TypeAlias = npt.NDArray[np.bool_]
"""Masks."""
