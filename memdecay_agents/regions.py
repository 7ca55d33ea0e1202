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

    refers: bool | None = None
    """Whether its words may refer to something that stood before, which is then worth more (default policy); False for
    what is read rather than said. None: False for tool results and retrieved documents, True for all others."""

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


READ_REGIONS: frozenset[str] = frozenset({"tool_out", "retrieval"})
"""Regions that are read rather than said: what they repeat is no mention."""

_PAPER_BASE_PRIORITY: Mapping[str, float] = {
    "system": 1.0, "user": 0.9, "plan": 0.8, "retrieval": 0.6, "tool_out": 0.5, "tool_in": 0.3, "scratchpad": 0.2,
}  # fmt: skip
# Ours: the published summary names b_r and gives no values.

_BASE_PRIORITY: Mapping[str, float] = {
    "system": 1.0, "tool_out": 1.0, "user": 0.09, "plan": 0.08, "retrieval": 0.06, "tool_in": 0.03, "scratchpad": 0.02,
}  # fmt: skip
_QUOTA_WEIGHT: Mapping[str, float] = {"tool_out": 3.0}
# Ours, from replays (EVALUATION.md): the next call quotes a fresh tool result, so it is worth most until the
# agent has written something, and nothing more later on; of the other regions age says little, and each has a share.

_MEASURED_HALF_LIFE_STEPS: Mapping[str, float] = {
    "user": 58.0, "retrieval": 52.0, "plan": 37.0, "tool_out": 30.0, "scratchpad": 22.0, "tool_in": 16.0,
}  # fmt: skip
# Ours: decode steps, SmolLM2-135M-Instruct, traces of ~450 tokens, first 16 tokens left out.

TOOL_RESULT_HALF_LIFE_STEPS = 8.0
"""Ours: how soon a tool result's priority halves once the agent writes, unless attention refreshes it."""

TOKENS_PER_DECODE_STEP = 10.0
"""Ours: positions computed for one generated token, in agents that mostly read; for a clock in tokens."""


def _profiles(tool_out_half_life: float, unit: ClockUnit) -> dict[str, RegionProfile]:
    return {
        name: RegionProfile(
            base_priority=_BASE_PRIORITY[name],
            half_life_ticks=tool_out_half_life if name == "tool_out" else None,
            half_life_unit=unit,
            pinned=name == "system",
            quota_weight=_QUOTA_WEIGHT.get(name, 1.0),
        )
        for name in REGIONS
    }


DEFAULT_PROFILES: Mapping[str, RegionProfile] = MappingProxyType(_profiles(TOOL_RESULT_HALF_LIFE_STEPS, "decode_steps"))
"""Profiles of the default policy, clock in decode steps. The system region is pinned. All numbers are ours, chosen by
replays with one small model: see EVALUATION.md, and tune for your own agent."""

_TOKEN_PROFILES: Mapping[str, RegionProfile] = _profiles(TOOL_RESULT_HALF_LIFE_STEPS * TOKENS_PER_DECODE_STEP, "tokens")
_TURN_PROFILES: Mapping[str, RegionProfile] = _profiles(1.0, "turns")

PAPER_PROFILES: Mapping[str, RegionProfile] = MappingProxyType(
    {
        name: RegionProfile(
            base_priority=_PAPER_BASE_PRIORITY[name],
            half_life_ticks={**_MEASURED_HALF_LIFE_STEPS, "system": 168.0, "scratchpad": 15.0}[name],
            half_life_unit="decode_steps",
            pinned=name == "system",
        )
        for name in REGIONS
    }
)
"""Profiles of ``paper`` mode, clock in decode steps. Published: system 148-189 and scratchpad 14-16 (the
middle of each is used). The other five half-lives and all base priorities are ours, since the publication gives
none; it does find retrieval the longest-lived unpinned region, where our measurement puts user slightly
ahead. The system half-life counts only where pins are switched off."""


def default_profiles(clock_unit: ClockUnit, *, paper: bool = False) -> dict[str, RegionProfile]:
    """The seven profiles for a clock: ``paper`` ones, or the default policy's."""
    if paper:
        return dict(PAPER_PROFILES)
    by_unit = {"tokens": _TOKEN_PROFILES, "decode_steps": DEFAULT_PROFILES, "turns": _TURN_PROFILES}
    return dict(by_unit[clock_unit])
