"""What an engine's own metrics have counted."""

from __future__ import annotations

from memdecay_adapters.engine import MemDecayEngine


def counted(engine: MemDecayEngine, name: str, *labels: str) -> float:
    """The sum of a counter's samples that have all of these label values."""
    samples = [sample for family in engine.metrics.collect() for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if set(labels) <= set(sample.labels.values()))
