"""Ranks in place of magnitudes: attention masses span orders of magnitude, their order is what carries over."""

from __future__ import annotations

import numpy as np

from memdecay_agents.arrays import BoolArray, FloatArray
from memdecay_kernels.implementations import native_library
from memdecay_kernels.native import host


def unit_ranks(values: FloatArray) -> FloatArray:
    """Ranks in [0, 1], equal values sharing their mean rank; float32 [n] from float32 [n]. One value: 0.5."""
    library = native_library()
    if library is not None and values.dtype == np.float32:
        return host.unit_ranks(library, np.ascontiguousarray(values))
    n = values.shape[0]
    if n < 2:
        return np.full(n, 0.5, dtype=np.float32)
    order = np.argsort(values)
    ordered = values[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    ranks = np.empty(n, dtype=np.float32)
    if starts.size == n:
        ranks[order] = np.arange(n, dtype=np.float32)
    else:
        ends = np.append(starts[1:], n)
        ranks[order] = np.repeat((starts + ends - 1) * 0.5, ends - starts)
    return ranks / np.float32(n - 1)


def ranks_within(values: FloatArray, rows: BoolArray) -> FloatArray:
    """Ranks of the tokens in the chosen rows among themselves; 0 elsewhere. Float32 [P, page], bool [P]."""
    ranks = np.zeros(values.shape, dtype=np.float32)
    chosen = values[rows]
    ranks[rows] = unit_ranks(chosen.ravel()).reshape(chosen.shape)
    return ranks
