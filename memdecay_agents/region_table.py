"""The region profiles of a configuration as arrays, so that per-token work is one gather a property."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memdecay_agents.arrays import BoolArray, FloatArray, IndexArray
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.regions import READ_REGIONS


@dataclass(frozen=True)
class RegionTable:
    """One entry a region, in the order of ``names``; R regions."""

    names: tuple[str, ...]
    base_priority: FloatArray
    """float32 [R]: b_r."""
    decay_rate_per_tick: FloatArray
    """float32 [R]: lambda_r = ln 2 / half-life; 0 where nothing decays."""
    half_life_ticks: FloatArray
    """float32 [R]: infinite where nothing decays."""
    pinned: BoolArray
    """bool [R]: pinned by the configuration."""
    quota_weight: npt.NDArray[np.float64]
    """float64 [R]: in full precision, so that a share that is a whole number of pages stays one."""
    refers: BoolArray
    """bool [R]: its words may refer to what stood before."""
    tie_rank: IndexArray
    """int64 [R]: a permutation of 0..R-1, growing with base priority; on a tie the earlier is higher."""

    @classmethod
    def of(cls, config: MemDecayConfig) -> RegionTable:
        """The table of a configuration."""
        profiles = [config.regions[name] for name in config.region_names]
        base = np.asarray([profile.base_priority for profile in profiles], dtype=np.float32)
        tie_rank = np.empty(len(profiles), dtype=np.int64)
        tie_rank[np.lexsort((-np.arange(len(profiles)), base))] = np.arange(len(profiles))
        return cls(
            names=config.region_names,
            base_priority=base,
            decay_rate_per_tick=np.asarray([p.decay_rate_per_tick for p in profiles], np.float32),
            half_life_ticks=np.asarray([p.half_life_ticks or np.inf for p in profiles], np.float32),
            pinned=np.asarray([p.pinned for p in profiles], dtype=np.bool_),
            quota_weight=np.asarray([p.effective_quota_weight for p in profiles], np.float64),
            refers=np.asarray(
                [
                    name not in READ_REGIONS if p.refers is None else p.refers
                    for name, p in zip(config.region_names, profiles, strict=True)
                ],
                dtype=np.bool_,
            ),
            tie_rank=tie_rank,
        )
