"""What the scoring operations read: a session's columns, how evidence is taken in, what a page's score is made of.

Each is a plain record of arrays and numbers, so that a policy composes its score instead of owning a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

Array = TypeVar("Array")
"""``torch.Tensor`` at the public operations, ``numpy.ndarray`` inside: the same memory."""


class TokenColumns(NamedTuple, Generic[Array]):
    """What is known about each token of one session; n is its capacity, whole pages."""

    region: Array
    """int8 ``[n]``: index into the tables of `ScoreTerms`."""
    flags: Array
    """int8 ``[n]``: the bit of value 2 marks a superseded token."""
    refreshed_at_ticks: Array
    """int64 ``[n]``: clock when the token was written or last refreshed."""
    ewma_mass: Array
    """float32 ``[n]``: moving average of the raw mass."""
    accumulated_relative: Array
    """float32 ``[n]``: sum of the relative mass (1 is the uniform level) over all queries."""
    salience_sum: Array
    """float32 ``[n]``: salience times queries."""
    salience_weight: Array
    """float32 ``[n]``: queries that the salience comes from."""
    last_query_mass: Array
    """float32 ``[n]``: raw mass of the newest query that was measured."""
    key_norm: Array
    """float32 ``[n]``: Euclidean norm of the token's key, mean over key heads and layers; 0: not measured."""


@dataclass(frozen=True)
class ObserveRule:
    """How one measurement of attention enters the columns."""

    ewma_factor: float
    """Weight of one query in the moving average; W queries compound to ``1 - (1 - f)^W``."""
    salience_neighbours: int
    """On each side, in retained order."""
    salience_floor_relative: float
    """Below which a relative mass counts as this much inside the logarithm."""
    salience_min_age_tokens: int
    """Salience counts only for tokens at least this much older than the newest observed one."""
    refresh: Literal["raw_mass", "relative_mass", "never"]
    """Which mass sets a token's clock back."""
    refresh_threshold: float = 0.0
    """A token whose mass is above it is refreshed."""


@dataclass(frozen=True, eq=False)
class ScoreTerms(Generic[Array]):
    """A page's score: ``b_r g(age) + w_a A + w_s S``, A and S as magnitudes or as ranks among evictable tokens."""

    base_priority: Array
    """float32 ``[regions]``: b_r."""
    decay_rate_per_tick: Array
    """float32 ``[regions]``: lambda_r, read by the exponential form ``exp(-lambda age)``."""
    half_life_ticks: Array
    """float32 ``[regions]``: h_r, read by the power law ``1 / (1 + age / h)``; infinity: no decay."""
    decay_form: Literal["exponential", "power_law"] = "exponential"
    superseded_factor: float = 1.0
    """Base priority of superseded tokens is multiplied by this."""
    attention_column: Literal["ewma_mass", "accumulated_relative", "last_query_mass", "key_norm"] = "ewma_mass"
    """What A is; a key's norm says how little attention it draws: weigh it below zero."""
    attention_weight: float = 0.0
    """w_a (published: alpha)."""
    attention_form: Literal["magnitude", "rank"] = "magnitude"
    salience_weight: float = 0.0
    """w_s; the salience of a token is its mean over the queries that saw it."""
    salience_form: Literal["magnitude", "rank"] = "magnitude"
