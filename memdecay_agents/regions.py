"""The seven regions of an agent's context, and what a region's tokens are worth over time.

Sources. The region names and the pinned system region: MemDecay, the published method. Half-lives: see
``DEFAULT_PROFILES`` and ``PAPER_PROFILES``, which say number by number what is published and what is ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator

from memdecay_agents._validation import first_problem
from memdecay_agents.errors import ConfigError

REGIONS: tuple[str, ...] = ("system", "plan", "user", "tool_in", "tool_out", "retrieval", "scratchpad")
"""The regions that every configuration knows, in the order of their indices."""

ClockUnit: TypeAlias = Literal["decode_steps", "tokens", "turns"]
"""What one tick is: a generated token, a computed position, or a turn of the agent."""


class RegionProfile(BaseModel):
    """What the tokens of one region are worth, and for how long.

    Raises:
        ConfigError: a value is out of range, of the wrong type, or unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    base_priority: float = Field(ge=0.0, le=1000.0)
    """b_r: the structural part of the score of a token that was just written or refreshed."""

    half_life_ticks: float | None = Field(default=None, gt=0.0)
    """Ticks of the clock after which the structural part has halved; None: it never decays."""

    half_life_unit: ClockUnit | None = None
    """The clock that ``half_life_ticks`` was measured with; None: the configuration's own. A configuration
    with another clock refuses the profile."""

    pinned: bool = False
    """True: pages that hold a token of this region are never evicted while the session runs."""

    quota_weight: float | None = Field(default=None, ge=0.0, le=1000.0)
    """Share of the evictable budget that is this region's own, relative to the others; None:
    ``base_priority``."""

    @model_validator(mode="wrap")
    @classmethod
    def _own_errors(cls, data: Any, handler: ModelWrapValidatorHandler[RegionProfile]) -> RegionProfile:
        try:
            return handler(data)
        except ValidationError as error:
            path, problem = first_problem(error)
            raise ConfigError(
                where=f"RegionProfile.{path}" if path else "RegionProfile",
                rule=problem,
                remedy="See memdecay_agents.regions.RegionProfile for the fields and their ranges.",
            ) from None

    @property
    def decay_rate_per_tick(self) -> float:
        """lambda_r = ln 2 / half-life, in 1/ticks; 0 where the region does not decay."""
        return 0.0 if self.half_life_ticks is None else math.log(2.0) / self.half_life_ticks

    @property
    def effective_quota_weight(self) -> float:
        """``quota_weight``, or the base priority where none was given."""
        return self.base_priority if self.quota_weight is None else self.quota_weight


_BASE_PRIORITY: Mapping[str, float] = {
    "system": 1.0, "user": 0.9, "plan": 0.8, "retrieval": 0.6, "tool_out": 0.5, "tool_in": 0.3, "scratchpad": 0.2,
}  # fmt: skip
# Ours: the published summary names b_r and gives no values. The user region stands high, with the quota
# that follows from it as a floor, because lost user messages are what people complain about elsewhere.

_MEASURED_HALF_LIFE_STEPS: Mapping[str, float] = {
    "user": 58.0, "retrieval": 52.0, "plan": 37.0, "tool_out": 30.0, "scratchpad": 22.0, "tool_in": 16.0,
}  # fmt: skip
# Ours: decode steps, SmolLM2-135M-Instruct, traces of ~450 tokens, first 16 tokens left out.

TOKENS_PER_DECODE_STEP = 10.0
"""Ours: positions computed for one generated token, in agents that mostly read. It turns measured half-lives
(decode steps) into the default ones (tokens)."""

_TURNS_HALF_LIFE: Mapping[str, float] = {
    "user": 6.0, "retrieval": 5.0, "plan": 4.0, "tool_out": 3.0, "scratchpad": 2.0, "tool_in": 1.5,
}  # fmt: skip
# Ours: a guess in the measured order. Calibrate before relying on it.


def _profiles(half_lives: Mapping[str, float], unit: ClockUnit) -> dict[str, RegionProfile]:
    return {
        name: RegionProfile(
            base_priority=_BASE_PRIORITY[name],
            half_life_ticks=half_lives.get(name),
            half_life_unit=unit,
            pinned=name == "system",
        )
        for name in REGIONS
    }


DEFAULT_PROFILES: Mapping[str, RegionProfile] = MappingProxyType(
    _profiles({name: steps * TOKENS_PER_DECODE_STEP for name, steps in _MEASURED_HALF_LIFE_STEPS.items()}, "tokens")
)
"""Profiles of the default policy, clock in tokens: our measured half-lives times ``TOKENS_PER_DECODE_STEP``.
The system region is pinned and does not decay. Base priorities are ours. They were measured at one trace
length and grow with it: calibrate per context length for anything that matters."""

_DECODE_STEP_PROFILES: Mapping[str, RegionProfile] = _profiles(_MEASURED_HALF_LIFE_STEPS, "decode_steps")
_TURN_PROFILES: Mapping[str, RegionProfile] = _profiles(_TURNS_HALF_LIFE, "turns")

PAPER_PROFILES: Mapping[str, RegionProfile] = MappingProxyType(
    _profiles({**_MEASURED_HALF_LIFE_STEPS, "system": 168.0, "scratchpad": 15.0}, "decode_steps")
)
"""Profiles of ``paper`` mode, clock in decode steps. Published: system 148-189 and scratchpad 14-16 (the
middle of each is used). The other five half-lives and all base priorities are ours, since the publication gives
none; it does find retrieval the longest-lived unpinned region, where our measurement puts user slightly
ahead. The system half-life counts only where pins are switched off."""


def default_profiles(clock_unit: ClockUnit, *, paper: bool = False) -> dict[str, RegionProfile]:
    """The seven profiles for a clock: ``paper`` ones, or the default policy's."""
    if paper:
        return dict(PAPER_PROFILES)
    by_unit = {"tokens": DEFAULT_PROFILES, "decode_steps": _DECODE_STEP_PROFILES, "turns": _TURN_PROFILES}
    return dict(by_unit[clock_unit])
