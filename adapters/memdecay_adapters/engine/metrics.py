"""The engine's counters and gauges for Prometheus.

In one process: `registry_of` is a registry of its own, read when it is scraped. Under vLLM's server the scheduler
runs in another process than ``/metrics``: there the counters travel as vLLM's KV-connector statistics
(`EventDeltas`), and `ServedMetrics` adds them to the metrics that vLLM itself serves, with vLLM's labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from memdecay_adapters.engine.agent_tallies import AgentTally
from memdecay_adapters.engine.events import COUNTERS, TIER_COUNTERS, CounterSpec, EngineEvents
from memdecay_adapters.engine.settings import EngineSettings
from memdecay_agents.errors import EngineError

if TYPE_CHECKING:
    from memdecay_adapters.engine.inprocess import PoolStats

Snapshot = tuple[list[tuple[CounterSpec, tuple[str, ...], int]], "PoolStats", list[AgentTally]]
"""Counters, pool and agents at one moment."""


class EngineCollector(Collector):
    """Shows one engine's numbers when it is scraped.

    Args:
        snapshot: takes them, on the thread that owns the engine.
    """

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        """Nothing: a registry then does not scrape when the collector is registered."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All counters and gauges now; none of an engine that is closed."""
        try:
            counts, pool, agents = self._snapshot()
        except EngineError:
            return
        families = {
            spec.name: CounterMetricFamily(spec.name, spec.help, labels=spec.labels) for spec in COUNTERS.values()
        }
        for spec, labels, count in counts:
            families[spec.name].add_metric(labels, count)
        for name, family in families.items():
            if family.samples or not any(spec.name == name for spec in TIER_COUNTERS):
                yield family
        pages = GaugeMetricFamily("memdecay_pool_pages", "Pages of the KV-cache pool.", labels=("state",))
        pages.add_metric(("free",), pool.free_pages)
        pages.add_metric(("held",), pool.held_pages)
        pages.add_metric(("guaranteed",), pool.reserved_pages)
        yield pages
        if pool.host_bytes is not None:
            yield GaugeMetricFamily("memdecay_host_tier_bytes", "Bytes of pages in host memory.", value=pool.host_bytes)
        yield GaugeMetricFamily("memdecay_idle_sessions", "Sessions between their turns.", value=pool.idle_sessions)
        yield GaugeMetricFamily(
            "memdecay_waiting_requests", "Requests that wait for admission.", value=pool.waiting_requests
        )
        budget = GaugeMetricFamily(
            "memdecay_agent_budget_pages", "Budget of an agent's newest turn.", labels=("agent",)
        )
        achieved = GaugeMetricFamily(
            "memdecay_agent_peak_pages", "Most pages that an agent held while decoding.", labels=("agent",)
        )
        for tally in agents:
            achieved.add_metric((tally.agent,), tally.peak_pages)
            if tally.budget_pages is not None:
                budget.add_metric((tally.agent,), tally.budget_pages)
        yield budget
        yield achieved


def registry_of(snapshot: Callable[[], Snapshot]) -> CollectorRegistry:
    """A registry with one engine's metrics."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(snapshot))
    return registry


def exposition(registry: CollectorRegistry) -> str:
    """A registry in Prometheus' text format."""
    return generate_latest(registry).decode()


# ---- under vLLM's server


@dataclass
class EventDeltas(KVConnectorStats):
    """Counts since the last report, as plain data: name -> label values -> count."""

    data: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def since(cls, events: EngineEvents, before: dict[tuple[str, tuple[str, ...]], int]) -> EventDeltas:
        """What was counted since ``before``, which is brought up to date."""
        data: dict[str, list[tuple[list[str], int]]] = {}
        for spec, labels, count in events:
            if new := count - before.get((spec.name, labels), 0):
                data.setdefault(spec.name, []).append((list(labels), new))
                before[spec.name, labels] = count
        return cls(data)

    def reset(self) -> None:
        """Forget all counts."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Add another report's counts."""
        for name, counts in other.data.items():
            self.data.setdefault(name, []).extend(counts)
        return self

    def reduce(self) -> dict[str, int | float]:
        """Totals by counter, for vLLM's periodic log line."""
        return {name: sum(count for _, count in counts) for name, counts in self.data.items()}

    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return not self.data


def _forget_earlier_engine() -> None:
    """Take our counters out of Prometheus' own registry, as vLLM does with its own: a second engine brings them."""
    for collector in list(REGISTRY._collector_to_names):
        if getattr(collector, "_name", None) in COUNTERS:
            REGISTRY.unregister(collector)


class ServedMetrics(KVConnectorPromMetrics):
    """The counters among the metrics of vLLM's server: vLLM's own labels (model, engine) and then ours."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine: Any) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine)
        _forget_earlier_engine()
        has_tier = EngineSettings.from_vllm_config(vllm_config).host_tier is not None
        self._counters = {
            spec.name: self._counter_cls(
                name=spec.name, documentation=spec.help, labelnames=[*labelnames, *spec.labels]
            )
            for spec in COUNTERS.values()
            if has_tier or spec not in TIER_COUNTERS
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add a report's counts."""
        engine_labels = self.per_engine_labelvalues[engine_idx]
        for name, counts in transfer_stats_data.items():
            counter = self._counters.get(name)
            if counter is not None:
                for labels, count in counts:
                    counter.labels(*engine_labels, *labels).inc(count)
