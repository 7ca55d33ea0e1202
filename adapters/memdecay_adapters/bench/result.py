"""The figures of one benchmark: values by name, and which bounds they miss."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memdecay_adapters.bench.statistics import PairedRatio

SCHEMA_VERSION = 1


@dataclass
class BenchResult:
    """All figures, ready for JSON."""

    values: dict[str, Any] = field(default_factory=dict)
    failed_bounds: list[str] = field(default_factory=list)

    def set_ratio(self, key: str, ratio: PairedRatio, bound: float | None = None) -> None:
        """Store a ratio with its interval, and whether its bound is met."""
        self.values[key] = round(ratio.median, 4)
        self.values[f"{key}_interval"] = [round(ratio.low, 4), round(ratio.high, 4)]
        self.values[f"{key}_pairs"] = ratio.pairs
        if bound is not None:
            self.check(key, ratio.within(bound), bound)

    def check(self, key: str, met: bool, bound: float) -> None:
        """Note a bound."""
        self.values[f"{key}_bound"] = bound
        self.values[f"{key}_bound_met"] = met
        if not met:
            self.failed_bounds.append(key)


def save(result: BenchResult, path: Path) -> None:
    """Write the figures as JSON."""
    path.write_text(json.dumps(result.values, indent=1) + "\n", encoding="utf-8")
