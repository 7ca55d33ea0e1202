"""One engine for equal configurations: chat models that ask for the same engine share its weights."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from memdecay_adapters.engine.engine import MemDecayEngine
from memdecay_adapters.engine.tier.settings import HostTier
from memdecay_adapters.models import resolve_model
from memdecay_agents.agent_budgets import AgentBudget
from memdecay_agents.config import MemDecayConfig

_lock = threading.Lock()
_engines: dict[str, MemDecayEngine] = {}


def shared_engine(
    model: str | None = None,
    config: MemDecayConfig | None = None,
    engine_args: Mapping[str, Any] | None = None,
    default_budget: AgentBudget | None = None,
    host_tier: HostTier | None = None,
) -> MemDecayEngine:
    """The open engine with exactly this model, configuration and arguments, or a new one.

    Args:
        model: see `MemDecayEngine`.
        config: the same.
        engine_args: the same.
        default_budget: of the chat model that asks. An engine that is started here sizes its pool by it where the
            configuration names no budget (a context longer than the pool can then be served); an open one is shared
            whatever its chat models' budgets are, since each request brings its own.
        host_tier: see `MemDecayEngine`.

    Raises:
        EngineError: an engine with other settings is open in this process.
    """
    config = config or MemDecayConfig()
    key = _key(model, config, engine_args, host_tier)
    with _lock:
        engine = _engines.get(key)
        if engine is not None and engine.closed:
            engine.close()  # it stopped on a fault: make way for another
            engine = None
        if engine is None:
            sized = config
            if default_budget is not None and config.budget_of("") is None:
                sized = config.with_default_budget(default_budget)
            engine = MemDecayEngine(model, config=sized, engine_args=engine_args, host_tier=host_tier)
            _engines.clear()
            _engines[key] = engine
        return engine


def open_engine(
    model: str | None,
    config: MemDecayConfig,
    engine_args: Mapping[str, Any] | None,
    host_tier: HostTier | None = None,
) -> MemDecayEngine | None:
    """The open engine with exactly these settings; None: there is none, and none is started."""
    engine = _engines.get(_key(model, config, engine_args, host_tier)) if _engines else None
    return None if engine is None or engine.closed else engine


def _key(
    model: str | None, config: MemDecayConfig, engine_args: Mapping[str, Any] | None, host_tier: HostTier | None
) -> str:
    tier = None if host_tier is None else host_tier.model_dump(mode="json")
    settings = [resolve_model(model), config.model_dump(mode="json"), dict(engine_args or {}), tier]
    return json.dumps(settings, sort_keys=True, default=repr)
