"""Attention evidence: what one measurement says about retained tokens, and what refreshes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from memdecay_agents.arrays import BoolArray, FloatArray, IndexArray
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ObservationError

MAX_TOTAL_MASS = 1.05
"""Attention is a distribution: its mass sums to 1; the margin is for half precision."""


@dataclass(frozen=True)
class RefreshRule:
    """When attention sets a token's clock back to now."""

    kind: Literal["raw_mass", "relative_mass", "never"]
    """Compare the mass itself, or the mass times the number of retained tokens (1 is the uniform level)."""
    threshold: float = 0.0
    """A token above it is refreshed."""

    @classmethod
    def for_config(cls, config: MemDecayConfig) -> RefreshRule:
        """tau on the raw mass for ``paper``, the relative threshold for every other policy."""
        if config.policy == "paper":
            return cls("raw_mass", config.paper_refresh_threshold_mass)
        return cls("relative_mass", config.refresh_threshold_relative)

    def refreshed(self, mass: FloatArray, relative_mass: FloatArray) -> BoolArray:
        """Which of the observed tokens are refreshed, bool [m]; both masses float32 [m]."""
        if self.kind == "never":
            return np.zeros(mass.shape, dtype=np.bool_)
        observed = mass if self.kind == "raw_mass" else relative_mass
        return np.asarray(observed > self.threshold, dtype=np.bool_)


@dataclass(frozen=True, eq=False)
class Observation:
    """Attention mass on the m retained tokens, averaged over the measured queries, heads and layers.

    Raises:
        ObservationError: arrays of different lengths, indices not strictly increasing, a mass that is NaN,
            infinite, negative or sums above 1, or fewer than one represented query.
    """

    token_index: IndexArray
    """int64 [m]: logical indices of the retained tokens, strictly increasing."""
    mass: FloatArray
    """float32 [m]: sums to about 1."""
    represented_queries: int = 1
    """Queries that this measurement stands for: those of the chunk, or those since the last one."""
    decode: bool = True
    """Whether the queries are generated tokens; both kinds count alike as evidence."""
    last_query_mass: FloatArray | None = None
    """float32 [m]: mass of the newest query alone, where it was measured."""
    key_norms: FloatArray | None = None
    """float32 [k], k <= m: Euclidean norms of the keys of the newest k retained tokens, mean over key heads and
    layers, where they were measured."""

    def __post_init__(self) -> None:
        """Convert to the declared types, then check."""
        object.__setattr__(self, "token_index", np.asarray(self.token_index, dtype=np.int64))
        object.__setattr__(self, "mass", np.asarray(self.mass, dtype=np.float32))
        if self.token_index.ndim != 1 or self.mass.shape != self.token_index.shape:
            raise _error(f"{self.mass.shape} masses for {self.token_index.shape} token indices")
        index = self.token_index
        if index.size and (index[0] < 0 or (index[1:] <= index[:-1]).any()):
            raise _error("token indices are not strictly increasing from 0 on")
        if self.represented_queries < 1:
            raise _error(f"{self.represented_queries} represented queries")
        _check_mass("mass", self.mass)
        if self.last_query_mass is not None:
            object.__setattr__(self, "last_query_mass", np.asarray(self.last_query_mass, dtype=np.float32))
            if self.last_query_mass.shape != self.mass.shape:
                raise _error(f"{self.last_query_mass.shape} last-query masses for {self.mass.shape} masses")
            _check_mass("last_query_mass", self.last_query_mass)
        if self.key_norms is not None:
            object.__setattr__(self, "key_norms", np.asarray(self.key_norms, dtype=np.float32))
            if self.key_norms.ndim != 1 or self.key_norms.size > self.mass.size:
                raise _error(f"{self.key_norms.shape} key norms for {self.mass.shape} masses")
            if not np.isfinite(self.key_norms).all() or (self.key_norms.size and float(self.key_norms.min()) < 0.0):
                raise _error("key_norms holds a value that is no norm")


def _check_mass(name: str, mass: FloatArray) -> None:
    if not mass.size:
        return
    total = float(mass.sum(dtype=np.float64))
    if not np.isfinite(total):
        raise _error(f"{name} holds NaN or infinity")
    if float(mass.min()) < 0.0:
        raise _error(f"{name} holds a negative value, {float(mass.min()):g}")
    if total > MAX_TOTAL_MASS:
        raise _error(f"{name} sums to {total:.4f}, and attention sums to 1")


def _error(rule: str) -> ObservationError:
    return ObservationError(
        where="attention observation",
        rule=rule,
        remedy="Report the softmax mass of retained tokens, averaged over queries, heads and layers.",
    )
