"""What holds for one call: agent, session, budget, pins and output region, wherever they come from.

First match wins, for each setting on its own: keyword of the call > ``with_config(metadata=...)`` > node
metadata > the model's ``budgets`` map (a glob on the agent path) > the model's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from langchain_core.runnables.config import var_child_runnable_config

from memdecay_adapters.langgraph.identity import identify
from memdecay_adapters.langgraph.metadata import (
    NodeSettings,
    check_regions,
    merge_settings,
    parse_settings,
    settings_from_metadata,
)
from memdecay_adapters.langgraph.running import warn_if_lost
from memdecay_agents.agent_budgets import AgentBudget
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.sessions import SessionId

NODE_KEYS = frozenset({"agent", "pin", "budget", "budget_tokens", "output_region"})
"""Keywords of a call that override node settings."""

CALL_KEYS = NODE_KEYS | {"thread_id"}
"""All keywords of a call that are read here."""

_UNSET = object()


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """What the model itself says; the weakest source."""

    tenant: str = "default"
    budget: AgentBudget | None = None
    budgets: Mapping[str, AgentBudget | None] = field(default_factory=dict)
    """Budget by glob on the agent path; the first glob that matches counts."""
    pin: tuple[str, ...] = ()
    output_region: str | None = None
    rewind: Literal["continue", "recompute"] = "continue"


@dataclass(frozen=True, slots=True)
class CallSettings:
    """What holds for one call."""

    tenant: str
    agent: str
    session: str
    """``session`` field of the hints; empty: a session of one turn."""
    budget: AgentBudget | None
    """None with ``unlimited=False``: the configuration's default."""
    unlimited: bool
    """No budget, even if the configuration has a default one."""
    pins: tuple[str, ...]
    rewind: Literal["continue", "recompute"]
    output_region: str
    explicit_region: bool
    """Whether somebody named the output region: only then the answer is tagged with it."""


def resolve_call(
    metadata: Mapping[str, Any], call: Mapping[str, Any], defaults: ModelDefaults, config: MemDecayConfig
) -> CallSettings:
    """Settle what holds for a call.

    Args:
        metadata: run metadata, completed from the context (`call_metadata`).
        call: keywords of the call among `CALL_KEYS`.
        defaults: the model's own settings.
        config: configuration of the engine, for the region names.

    Calls of a summarization middleware (``lc_source == "summarization"``) are exempt from the budget and
    belong to no session: their prompt is another text than the agent's.

    Raises:
        ConfigError: settings in metadata or keywords that do not hold. RegionError: an unknown region.
    """
    own = parse_settings({k: v for k, v in call.items() if k in NODE_KEYS}, "keywords of the call")
    settings = merge_settings(settings_from_metadata(metadata), own)
    identity = identify(metadata, settings.agent)
    if call.get("thread_id") is not None:
        identity = identity._replace(thread_id=str(call["thread_id"]))
    warn_if_lost(identity)
    check_regions(settings, config.region_names, f"agent {identity.agent!r}")

    summarizing = metadata.get("lc_source") == "summarization"
    budget = _budget(settings, identity.agent, defaults)
    thread = identity.thread_id or _context_thread()
    session = "" if thread is None or summarizing else _session(defaults.tenant, thread, identity.agent)
    region = settings.output_region or defaults.output_region
    return CallSettings(
        tenant=defaults.tenant,
        agent=identity.agent,
        session=session,
        budget=None if summarizing or budget is _UNSET else budget,
        unlimited=summarizing or budget is None,
        pins=settings.pin if settings.pin is not None else defaults.pin,
        rewind=defaults.rewind,
        output_region=region or "scratchpad",
        explicit_region=region is not None,
    )


def _budget(settings: NodeSettings, agent: str, defaults: ModelDefaults) -> Any:
    """The budget, None for no budget, or ``_UNSET``: nobody says."""
    if settings.has("budget"):
        return settings.budget
    for pattern, budget in defaults.budgets.items():
        if fnmatchcase(agent, pattern):
            return budget
    return _UNSET if defaults.budget is None else defaults.budget


def _session(tenant: str, thread_id: str, agent: str) -> str:
    return SessionId(tenant, thread_id, agent).hint_session


def _context_thread() -> str | None:
    """Thread of the surrounding runnable's ``configurable``, where no metadata carries it."""
    configurable = (var_child_runnable_config.get() or {}).get("configurable") or {}
    thread = configurable.get("thread_id")
    return None if thread is None else str(thread)
