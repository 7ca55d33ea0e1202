"""The frozen configuration of the core: every number that shapes a decision, checked once at the edge."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    field_validator,
    model_validator,
)

from memdecay_agents._validation import first_problem
from memdecay_agents.agent_budgets import AgentBudget, FixedBudget, as_budget
from memdecay_agents.errors import BudgetError, ConfigError, RegionError
from memdecay_agents.regions import ClockUnit, RegionProfile, default_profiles

_REGION_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
MAX_REGIONS = 100
"""Regions in one configuration: their indices are stored in one signed byte a token."""


class MemDecayConfig(BaseModel):
    """What is kept and why, as numbers. Immutable, picklable, and equal to what its own JSON makes.

    ``clock_unit`` defaults to decode steps, as published: what an agent was given stays young until it has written
    something, however long it is. Evaluation preferred that to a clock in tokens (EVALUATION.md).

    Raises:
        ConfigError: a value is out of range, of the wrong type, unknown, or contradicts another.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    regions: dict[str, RegionProfile] = Field(default_factory=dict)
    """Profiles by region. What is given here is laid over the seven defaults of the clock unit (a mapping may
    name only some fields of a default region); any other name is a region of your own."""

    policy: str = Field(default="memdecay", min_length=1)
    """Name of the policy in ``memdecay_agents.policies``."""

    policy_pins: bool = True
    """False: pins are ignored, for baselines without pins. Sinks and the recent window stay protected."""

    clock_unit: ClockUnit = "decode_steps"
    """What one tick is. Half-lives of profiles made for another unit are refused."""

    decay_form: Literal["exponential", "power_law"] = "exponential"
    """g(dt) of the default policy: 2 ** (-dt / h), or 1 / (1 + dt / h). ``paper`` is always exponential."""

    alpha: float = Field(default=1.0, ge=0.0)
    """Weight of the rank terms in the default policy, against base priorities of at most 1."""

    information_share: float = Field(default=0.8, ge=0.0, le=1.0)
    """Part of ``alpha`` that is a page's information: how surprising its tokens are in what the session has read. Ranks
    of key norms and salience share the rest; they have all of it where token ids are not known. Ours."""

    key_norm_share: float = Field(default=0.9, ge=0.0, le=1.0)
    """Part of that rest that is the rank of a token's key norm (small ranks high); salience has what remains. Ours."""

    quota_bonus: float | None = Field(default=0.25, ge=0.0)
    """What a page inside its region's quota of two pages or more gains in the order beside its structural part, which
    counts only inside; None: no page outside a quota stays before one inside. Ours."""

    neighbours_up_to_pages: float = Field(default=3.0, ge=0.0)
    """Default policy: with so many evictable pages or fewer, a page beside a held one gains 1; with more, as the square
    of the ratio. 0: neighbours count nothing. Ours."""

    mention_bonus: float = Field(default=0.16, ge=0.0)
    """Default policy: what a page gains that holds a name which is named later, or stands close to it. Ours."""

    ewma_factor: float = Field(default=0.1, gt=0.0, le=1.0)
    """Weight of one query in the moving average of raw mass: 0.1 sees about ten queries. Ours."""

    refresh_threshold_relative: float = Field(default=4.0, gt=0.0)
    """Default policy: a token whose relative mass (1: the uniform level) exceeds this is refreshed. Ours."""

    paper_alpha: float = Field(default=1.0, ge=0.0)
    """``paper`` mode: alpha of the published formula, whose value the publication does not give. Ours."""

    paper_refresh_threshold_mass: float = Field(default=0.01, gt=0.0, le=1.0)
    """``paper`` mode: tau, in raw attention mass. Ours: about five times the uniform level at 450 tokens."""

    superseded_factor: float = Field(default=0.1, ge=0.0, le=1.0)
    """Base priority of superseded tokens is multiplied by this; their pages lose their quota and go before all
    others. 1: superseded tokens are worth what they were, and only the quota is lost."""

    page_size_tokens: int = Field(default=16, ge=16, le=1024)
    """Tokens of one page (the engine's KV block); a multiple of 16."""

    default_budget_tokens: int | None = Field(default=None, gt=0)
    """Budget of requests that bring none; None: no limit. In pages it is rounded down."""

    agent_budgets: dict[str, AgentBudget | None] = Field(default_factory=dict)
    """Budgets by agent, for requests that bring none: the first pattern (as in file names) that the agent's path
    matches wins over ``default_budget_tokens``. A plain number is a fixed budget, None is no limit."""

    sink_pages: int = Field(default=1, ge=1)
    """Leading pages that no policy evicts: the first token alone takes a quarter of the mass."""

    recent_tokens: int = Field(default=32, ge=0)
    """Pages that touch this many newest tokens are evicted by no policy; for what a host tier brings back they may make
    room last (``Recall.recent_may_leave``)."""

    salience_neighbours: int = Field(default=8, ge=1, le=512)
    """Salience compares a token with this many retained neighbours on each side."""

    salience_min_age_tokens: int = Field(default=16, ge=0)
    """Salience counts only for tokens at least this many positions older than the newest query."""

    salience_floor_relative: float = Field(default=1e-3, gt=0.0)
    """Floor of the relative mass inside the salience logarithm, so that a zero stays finite."""

    measure_every_steps: int = Field(default=16, ge=1)
    """Engine steps from one measurement of attention to the next; it stands for the queries between."""

    observed_layers: Literal["all"] | int | tuple[int, ...] = 4
    """Layers whose mass is averaged: all, every n-th (an integer), or the ones listed."""

    query_window_tokens: int = Field(default=16, ge=1, le=4096)
    """Newest queries of a prefill chunk whose attention is measured. Enough for the default policy; one that only
    accumulates attention needs all queries of the chunk (BENCHMARKS.md)."""

    seed: int = 0
    """Seed of the random policy; the same seed, session and page give the same rank."""

    #: policies that were published with a clock of their own
    _POLICY_CLOCKS: ClassVar[Mapping[str, ClockUnit]] = {"paper": "decode_steps"}

    @model_validator(mode="wrap")
    @classmethod
    def _own_errors(cls, data: Any, handler: ModelWrapValidatorHandler[MemDecayConfig]) -> MemDecayConfig:
        try:
            return handler(_with_all_regions(data))
        except ValidationError as error:
            path, problem = first_problem(error)
            raise ConfigError(
                where=f"MemDecayConfig.{path}" if path else "MemDecayConfig",
                rule=problem,
                remedy="See memdecay_agents.config.MemDecayConfig for the fields and their ranges.",
            ) from None

    @field_validator("agent_budgets", mode="before")
    @classmethod
    def _read_budgets(cls, budgets: Any) -> Any:
        if not isinstance(budgets, Mapping):
            return budgets
        try:
            return {agent: as_budget(budget, f"agent_budgets[{agent!r}]") for agent, budget in budgets.items()}
        except BudgetError as error:
            raise _field_error(error.where, error.rule, error.remedy) from None

    @field_validator("observed_layers", mode="before")
    @classmethod
    def _layers_as_tuple(cls, layers: Any) -> Any:
        return tuple(layers) if isinstance(layers, list) else layers

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        needed = self._POLICY_CLOCKS.get(self.policy)
        if needed is not None and self.clock_unit != needed:
            raise ConfigError(
                where="MemDecayConfig.clock_unit",
                rule=f"policy '{self.policy}' counts in {needed}, as published, not in {self.clock_unit}",
                remedy=f"Use MemDecayConfig.{self.policy}(...), or clock_unit={needed!r}.",
            )
        for name, profile in self.regions.items():
            if profile.half_life_unit not in (None, self.clock_unit):
                raise ConfigError(
                    where=f"MemDecayConfig.regions['{name}']",
                    rule=f"it was made for {profile.half_life_unit}, and the clock is {self.clock_unit}",
                    remedy=f"Set clock_unit={profile.half_life_unit!r}, or calibrate one for this clock.",
                )
        if self.page_size_tokens % 16:
            rule = f"{self.page_size_tokens} is no multiple of 16"
            raise _field_error("page_size_tokens", rule, "Use 16 or 32.")
        if self.default_budget_tokens is not None and self.default_budget_tokens < self.page_size_tokens:
            raise _field_error(
                "default_budget_tokens",
                f"{self.default_budget_tokens} tokens are less than one page of {self.page_size_tokens}",
                "Raise it, or leave it out for no limit.",
            )
        layers = self.observed_layers
        bad = (isinstance(layers, int) and layers < 1) or (
            isinstance(layers, tuple) and (not layers or min(layers) < 0 or len(set(layers)) < len(layers))
        )
        if bad:
            raise _field_error(
                "observed_layers",
                f"{layers!r} names no layers",
                "Use 'all', a stride of at least 1, or a list of different layer indices.",
            )
        return self

    def __hash__(self) -> int:
        """Equal configurations hash alike, so that they can share an engine."""
        return hash(self.model_dump_json())

    @classmethod
    def paper(cls, **overrides: Any) -> MemDecayConfig:
        """The published method: its formula, its clock, and profiles near its half-lives."""
        published = {"policy": "paper", "clock_unit": "decode_steps", "decay_form": "exponential"}
        return cls(**{**published, **overrides})

    @classmethod
    def for_policy(cls, policy: str, **overrides: Any) -> MemDecayConfig:
        """A configuration for a policy by name, with the clock that the policy needs."""
        return cls.paper(**overrides) if policy == "paper" else cls(**{"policy": policy, **overrides})

    @classmethod
    def from_profile(cls, path: str | Path, *, context_tokens: int | None = None, **overrides: Any) -> MemDecayConfig:
        """A configuration with the half-lives of a profile file that ``memdecay calibrate`` wrote.

        Args:
            path: the file.
            context_tokens: how long the agent's contexts become; the nearest one measured counts. None: the longest.
            overrides: fields laid over the profile's.

        Raises:
            ConfigError: the file is no profile, or a field is wrong.
        """
        from memdecay_agents.calibration.profiles import ProfileFile

        return ProfileFile.load(Path(path)).config(context_tokens, **overrides)

    def with_default_budget(self, budget: Any) -> MemDecayConfig:
        """The same configuration with a default budget for all agents that it names none for.

        Args:
            budget: a number of tokens, or a budget. What was set explicitly stays known as such.

        Raises:
            ConfigError: less than one page, or no budget.
        """
        given = {name: getattr(self, name) for name in self.model_fields_set}
        if isinstance(budget, int):
            return MemDecayConfig(**{**given, "default_budget_tokens": budget})
        return MemDecayConfig(**{**given, "agent_budgets": {**self.agent_budgets, "*": budget}})

    def budget_of(self, agent: str) -> AgentBudget | None:
        """The budget of an agent whose request brings none; None: no limit."""
        for pattern, budget in self.agent_budgets.items():
            if fnmatchcase(agent, pattern):
                return budget
        return None if self.default_budget_tokens is None else FixedBudget(tokens=self.default_budget_tokens)

    @property
    def region_names(self) -> tuple[str, ...]:
        """All region names, by index: the seven first, then custom ones by name."""
        return tuple(self.regions)

    def region_index(self, name: str) -> int:
        """Index of a region in ``region_names``.

        Raises:
            RegionError: no such region; the message lists the known ones.
        """
        try:
            return self.region_names.index(name)
        except ValueError:
            raise RegionError(
                where=f"region {name!r}",
                rule=f"unknown region; known are {', '.join(self.region_names)}",
                remedy=f"Use one of them, or add it: MemDecayConfig(regions={{{name!r}: ...}}).",
            ) from None


def _field_error(field: str, rule: str, remedy: str) -> ConfigError:
    return ConfigError(where=f"MemDecayConfig.{field}", rule=rule, remedy=remedy)


def _with_all_regions(data: Any) -> Any:
    """Lay the regions that were given over the defaults of the clock unit; custom regions by name."""
    if not isinstance(data, Mapping):
        return data
    given = data.get("regions", {})
    unit = data.get("clock_unit", "decode_steps")
    if not isinstance(given, Mapping) or unit not in ("decode_steps", "tokens", "turns"):
        return data
    profiles = default_profiles(unit, paper=data.get("policy") == "paper" and unit == "decode_steps")
    for name in sorted(given, key=str):
        if not isinstance(name, str) or not _REGION_NAME.fullmatch(name):
            rule = f"{name!r} is no region name"
            raise _field_error("regions", rule, "Use lower case letters, digits and '_'.")
        profiles[name] = _profile(name, given[name], profiles.get(name))
    if len(profiles) > MAX_REGIONS:
        raise _field_error("regions", f"{len(profiles)} regions, at most {MAX_REGIONS}", "Merge some.")
    return {**data, "regions": profiles}


def _profile(name: str, given: Any, default: RegionProfile | None) -> Any:
    if not isinstance(given, Mapping):
        return given
    merged = {**(default.model_dump() if default is not None else {}), **given}
    try:
        return RegionProfile.model_validate(merged)
    except ConfigError as error:
        where = error.where.replace("RegionProfile", f"MemDecayConfig.regions['{name}']")
        raise ConfigError(where=where, rule=error.rule, remedy=error.remedy) from None
