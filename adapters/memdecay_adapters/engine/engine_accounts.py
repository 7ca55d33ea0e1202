"""The embedded engine's accounts: its pool, its ledger, its metrics, its agents, and attention lifetimes."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from memdecay_adapters.engine.engine_part import EnginePart
from memdecay_agents.errors import ConfigError, EngineError
from memdecay_agents.ledger import Ledger
from memdecay_agents.regions import ClockUnit

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from memdecay_adapters.engine.agent_tallies import AgentTally
    from memdecay_adapters.engine.inprocess import PoolStats
    from memdecay_adapters.engine.metrics import Snapshot
    from memdecay_agents.calibration.lifetimes import Lifetimes


class Accounts(EnginePart):
    """What `MemDecayEngine` counts; only `record_lifetimes` changes what it does."""

    _metrics: CollectorRegistry

    def pool_stats(self) -> PoolStats:
        """The block pool between two steps, in pages."""
        self._check_usable()
        return self._thread.call(self._internals.pool_stats)

    def ledger(self) -> Ledger:
        """A copy of the ledger: every page that was freed, when and why."""
        self._check_usable()
        return self._thread.call(self._internals.controller.ledger_copy)

    @property
    def metrics(self) -> CollectorRegistry:
        """Counters and gauges of this engine, for ``prometheus_client`` (``start_http_server(port, engine.metrics)``,
        or a push gateway); scraping it asks the engine between two steps."""
        return self._metrics

    def metrics_text(self) -> str:
        """The same in Prometheus' text format, now."""
        from memdecay_adapters.engine.metrics import exposition

        self._check_usable()
        return exposition(self._metrics)

    def _snapshot(self) -> Snapshot:
        self._check_usable()
        return self._thread.call(self._internals.metrics_snapshot)

    def agents(self) -> list[AgentTally]:
        """Each agent's budget, the pages that it held at most, and what was evicted, since start."""
        self._check_usable()
        return self._thread.call(lambda: list(self._internals.controller.agents))

    def record_lifetimes(self, unit: ClockUnit = "tokens") -> Lifetimes:
        """Begin to collect attention by region and age from all requests with a budget, for calibration.

        Sums of bounded size, no text. Read it between two requests (``memdecay_agents.calibration.calibrate``); the
        newest call's collects, and ends with the engine.

        Args:
            unit: clock of the ages; "turns" cannot be collected here.

        Raises:
            ConfigError: the unit is turns.
        """
        from memdecay_agents.calibration.lifetimes import Lifetimes

        self._check_usable()
        if unit == "turns":
            raise ConfigError(
                where="record_lifetimes(unit='turns')",
                rule="the engine does not keep the turn in which each token was written",
                remedy="Calibrate that unit from traces.",
            )
        lifetimes = Lifetimes(self.config.region_names, unit)
        self._thread.call(lambda: setattr(self._internals.controller, "lifetimes", lifetimes))
        return lifetimes


def weak_snapshot(engine: Accounts) -> Callable[[], Snapshot]:
    """A snapshot that does not keep the engine alive: its registry may be held longer by a server."""
    reference = weakref.ref(engine)

    def snapshot() -> Snapshot:
        held = reference()
        if held is None:
            raise EngineError(where="engine metrics", rule="the engine is gone", remedy="Start another one.")
        return held._snapshot()

    return snapshot
