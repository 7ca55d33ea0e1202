"""The engine's counters and gauges for Prometheus.

In one process: `registry_of` is a registry of its own, read when it is scraped. Under vLLM's server the scheduler
runs in another process than ``/metrics``: there the counters travel as vLLM's KV-connector statistics
(`EventDeltas`), and `ServedMetrics` adds them to the metrics that vLLM itself serves, with vLLM's labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from memdecay_adapters.engine.events import COUNTERS, TIER_COUNTERS, CounterSpec, EngineEvents
from memdecay_adapters.engine.gauges import GAUGES, TIER_GAUGES, GaugeSample
from memdecay_adapters.engine.settings import EngineSettings
from memdecay_agents.errors import EngineError

Snapshot = tuple[list[tuple[CounterSpec, tuple[str, ...], int]], list[GaugeSample]]
"""Counters and gauges at one moment."""


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
            counts, gauges = self._snapshot()
        except EngineError:
            return
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
            spec.name: CounterMetricFamily(spec.name, spec.help, labels=spec.labels) for spec in COUNTERS.values()
        }
        families |= {spec.name: GaugeMetricFamily(spec.name, spec.help, labels=spec.labels) for spec in GAUGES.values()}
        for spec, labels, count in counts:
            families[spec.name].add_metric(labels, count * spec.scale)
        for sample in gauges:
            families[sample.spec.name].add_metric(sample.labels, sample.value)
        only_with_tier = {spec.name for spec in (*TIER_COUNTERS, *TIER_GAUGES)}
        for name, family in families.items():
            if family.samples or name not in only_with_tier:
                yield family


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
    """Counts since the last report, and gauges where they were read: plain data, name -> [(label values, number)]."""

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

    def with_gauges(self, samples: Iterable[GaugeSample]) -> EventDeltas:
        """Add gauges; returns itself."""
        for spec, labels, value in samples:
            self.data.setdefault(spec.name, []).append((list(labels), value))
        return self

    def reset(self) -> None:
        """Forget all counts."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Add another report's counts; its gauges are the newer ones."""
        if other.data.keys() & GAUGES.keys():
            self.data = {name: counts for name, counts in self.data.items() if name not in GAUGES}
        for name, counts in other.data.items():
            self.data.setdefault(name, []).extend(counts)
        return self

    def reduce(self) -> dict[str, int | float]:
        """Totals by counter, for vLLM's periodic log line."""
        return {
            name: sum(count for _, count in counts) * COUNTERS[name].scale
            for name, counts in self.data.items()
            if name in COUNTERS
        }

    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return not self.data


def _forget_earlier_engine() -> None:
    """Take our counters out of Prometheus' own registry, as vLLM does with its own: a second engine brings them."""
    for collector in list(REGISTRY._collector_to_names):
        if getattr(collector, "_name", None) in COUNTERS.keys() | GAUGES.keys():
            REGISTRY.unregister(collector)


class ServedMetrics(KVConnectorPromMetrics):
    """The counters and gauges among the metrics of vLLM's server: vLLM's own labels (model, engine) and then ours."""

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
        self._gauges = {
            spec.name: self._gauge_cls(name=spec.name, documentation=spec.help, labelnames=[*labelnames, *spec.labels])
            for spec in GAUGES.values()
            if has_tier or spec not in TIER_GAUGES
        }
        self._shown: dict[tuple[int, str], set[tuple[str, ...]]] = {}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add a report's counts, and show its gauges."""
        engine_labels = self.per_engine_labelvalues[engine_idx]
        for name, counts in transfer_stats_data.items():
            counter = self._counters.get(name)
            if counter is not None:
                for labels, count in counts:
                    counter.labels(*engine_labels, *labels).inc(count * COUNTERS[name].scale)
        if transfer_stats_data.keys() & GAUGES.keys():
            for name, gauge in self._gauges.items():
                values = {tuple(labels): value for labels, value in transfer_stats_data.get(name, ())}
                for labels in self._shown.get((engine_idx, name), set()) - values.keys():
                    gauge.labels(*engine_labels, *labels).set(0)  # an agent that holds nothing any more
                for labels, value in values.items():
                    gauge.labels(*engine_labels, *labels).set(value)
                self._shown[engine_idx, name] = set(values)
