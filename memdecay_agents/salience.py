"""Local salience: how much a token stands out from its neighbours, whatever the distance or the sinks."""

from __future__ import annotations

import numpy as np

from memdecay_agents.arrays import FloatArray
from memdecay_kernels.implementations import native_library
from memdecay_kernels.native import host


def local_salience(relative_mass: FloatArray, *, neighbours: int, floor: float) -> FloatArray:
    """log of each relative mass over the mean of itself and its neighbours; our own term.

    Args:
        relative_mass: float32 [m], retained tokens in order; 1 is the uniform level.
        neighbours: on each side, in retained order; fewer at the ends.
        floor: below which a relative mass counts as this much.

    Returns:
        float32 [m]; 0 for a token like its neighbours.
    """
    library = native_library()
    if library is not None and relative_mass.dtype == np.float32:
        return host.local_salience(library, np.ascontiguousarray(relative_mass), neighbours, floor)
    m = relative_mass.shape[0]
    floored = np.maximum(relative_mass, np.float32(floor))
    total = np.zeros(m + 1, dtype=np.float64)
    np.cumsum(floored, dtype=np.float64, out=total[1:])
    position = np.arange(m)
    first = np.maximum(position - neighbours, 0)
    last = np.minimum(position + neighbours + 1, m)
    mean = (total[last] - total[first]) / (last - first)
    return np.asarray(np.log(floored / mean.astype(np.float32)), dtype=np.float32)
