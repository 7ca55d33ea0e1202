"""A node's settings in the graph definition: ``metadata={"memdecay": {...}}``, checked once at the edge.

The same four settings may come from several places. First match wins, for each setting on its own:
call keyword > ``model.with_config(metadata=...)`` > node metadata > the model's ``budgets`` map > default.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from memdecay_agents.agent_budgets import AgentBudget, FixedBudget, as_budget
from memdecay_agents.errors import BudgetError, ConfigError, RegionError

METADATA_KEY = "memdecay"
"""Key of a node's settings in its metadata."""

OUTER_METADATA_KEY = "memdecay_outer"
"""Key under which wrapped nodes pass their merged settings to subgraphs: langgraph replaces the value
under ``METADATA_KEY`` as a whole when an inner node has one of its own."""

_ALIASES = {"budget_tokens": "budget"}


class NodeSettings(BaseModel):
    """What a graph says about the calls of one node. A field that is not set says nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    agent: str | None = Field(default=None, min_length=1, max_length=512)
    """Agent that the node's calls belong to; overrides the path derived from the graph."""

    pin: tuple[str, ...] | None = None
    """Regions whose pages are never evicted in this agent's sessions."""

    budget: AgentBudget | None = None
    """KV-cache budget of the agent's session: a number of tokens, `FixedBudget`, `ContextFraction`, `PoolShare`, or
    a mapping that says the same; set to None: no budget. Alias: ``budget_tokens``."""

    output_region: str | None = Field(default=None, min_length=1)
    """Region of the text that the node writes."""

    @field_validator("pin", mode="before")
    @classmethod
    def _pin_as_tuple(cls, value: object) -> object:
        """Accept one name, a list or a set of names; keep the order, drop repeats."""
        if isinstance(value, str):
            return (value,)
        if isinstance(value, (list, tuple)):
            return tuple(dict.fromkeys(value)) if all(isinstance(v, str) for v in value) else tuple(value)
        if isinstance(value, (set, frozenset)):
            return tuple(sorted(value))
        return value

    @field_validator("budget", mode="before")
    @classmethod
    def _read_budget(cls, value: object) -> object:
        try:
            return as_budget(value)
        except BudgetError as error:
            raise ValueError(f"{error.where}: {error.rule}") from error

    def as_metadata(self) -> dict[str, Any]:
        """Return the settings that were set, as plain JSON types."""
        plain = self.model_dump(exclude_unset=True)
        if plain.get("pin") is not None:
            plain["pin"] = list(plain["pin"])
        if isinstance(self.budget, FixedBudget) and self.budget.guaranteed_tokens is None:
            del plain["budget"]
            plain["budget_tokens"] = self.budget.tokens
        elif self.budget is not None:  # whole: its kind is a default and tells the kinds apart
            plain["budget"] = self.budget.model_dump(mode="json")
        return plain

    def has(self, field: str) -> bool:
        """Return whether ``field`` was set here (even to None)."""
        return field in self.model_fields_set


def parse_settings(raw: object, where: str) -> NodeSettings:
    """Check settings as a user wrote them.

    Args:
        raw: a mapping, or settings that were checked before.
        where: what they belong to, for the error ("node 'planner'").

    Raises:
        ConfigError: not a mapping, an unknown key, or a value of the wrong type or range.
    """
    if isinstance(raw, NodeSettings):
        return raw
    if not isinstance(raw, Mapping):
        raise ConfigError(
            where=where,
            rule=f"memdecay settings must be a mapping, got {type(raw).__name__}",
            remedy=f"Write a dict with any of {_known_keys()}.",
        )
    values: dict[str, Any] = {}
    for key, value in raw.items():
        name = _ALIASES.get(key, key)
        if name in values:
            raise ConfigError(
                where=where,
                rule=f"'{name}' is given twice, once as an alias",
                remedy="Give one of 'budget' and 'budget_tokens'.",
            )
        if name not in NodeSettings.model_fields:
            raise ConfigError(
                where=where,
                rule=f"unknown memdecay setting {key!r}",
                remedy=f"Known settings: {_known_keys()}.",
            )
        values[name] = value
    try:
        return NodeSettings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "settings"
        problem = first["msg"].removeprefix("Value error, ")
        raise ConfigError(
            where=where,
            rule=f"'{field}': {problem[:1].lower()}{problem[1:]}, got {first['input']!r}",
            remedy="Correct the value: 'budget' is a whole number of tokens above 0 or one of FixedBudget, "
            "ContextFraction and PoolShare, 'pin' a list of region names, 'agent' and 'output_region' are names.",
        ) from error


def merge_settings(outer: NodeSettings, inner: NodeSettings) -> NodeSettings:
    """Merge setting by setting; what ``inner`` sets wins."""
    return NodeSettings(
        **{name: getattr(source, name) for source in (outer, inner) for name in sorted(source.model_fields_set)}
    )


def call_metadata(run_metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Complete a call's run metadata with that of the surrounding node.

    ``model.with_config(metadata=...)`` inside a node replaces the node's metadata in the call's config, and
    langchain-core hands no run manager to ``_stream``: the context's config still has what is missing.
    """
    context = var_child_runnable_config.get() or {}
    return {**(context.get("metadata") or {}), **(run_metadata or {})}


def settings_from_metadata(metadata: Mapping[str, Any]) -> NodeSettings:
    """Return the settings that apply to a call, from its run metadata (outer ones first, inner ones win).

    Raises:
        ConfigError: metadata that a user wrote by hand and that does not hold.
    """
    where = f"node {metadata['langgraph_node']!r}" if metadata.get("langgraph_node") else "run metadata"
    merged = NodeSettings()
    for key in (OUTER_METADATA_KEY, METADATA_KEY):
        raw = metadata.get(key)
        if raw is not None:
            merged = merge_settings(merged, parse_settings(raw, where))
    return merged


def check_regions(settings: NodeSettings, known: Collection[str], where: str) -> None:
    """Refuse region names that the configuration does not know.

    Raises:
        RegionError: naming the setting, the region and the known ones.
    """
    named = [("pin", region) for region in settings.pin or ()]
    if settings.output_region is not None:
        named.append(("output_region", settings.output_region))
    for field, region in named:
        if region not in known:
            raise RegionError(
                where=where,
                rule=f"'{field}' names the unknown region {region!r}",
                remedy=f"Known regions: {', '.join(known)}. A region of your own is one more key of "
                "MemDecayConfig(regions={...}); give that configuration as config=.",
            )


def _known_keys() -> str:
    return ", ".join(sorted({*NodeSettings.model_fields, *_ALIASES}))
