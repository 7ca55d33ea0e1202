"""What the scheduler and the worker tell each other in one engine step.

Both ride on vLLM's KV-connector channel, which works alike in-process, across processes and over
tensor-parallel ranks. The freed pages travel with the very step they belong to, so that no later step can
write through a stale row.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata


@dataclass
class StepDirections(KVConnectorMetadata):
    """Scheduler to worker: what to do before and during this step's forward pass."""

    evicted: dict[str, list[int]] = field(default_factory=dict)
    """Request id to the logical pages that left its block table since the last step."""

    observe: dict[str, int] = field(default_factory=dict)
    """Request id to the number of newest queries whose attention is to be measured."""

    expected_rows: dict[str, list[int]] | None = None
    """Request id to its block-table row (page ids, null pages as 0); only when integrity is checked."""


@dataclass
class MassReport:
    """The attention mass of one request in one step."""

    token_index: torch.Tensor
    """int64 ``[retained]``: logical token indices, ascending."""

    mass: torch.Tensor
    """float32 ``[retained]``: mean over the queries, heads and observed layers (summed over ranks)."""


@dataclass
class AttentionReport(KVConnectorWorkerMetadata):
    """Worker to scheduler: the measured attention of a step."""

    by_request: dict[str, MassReport] = field(default_factory=dict)
    ranks: int = 1
    """How many tensor-parallel ranks the masses are summed over."""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> AttentionReport:
        """Add another rank's report: the same tokens, other heads."""
        if not isinstance(other, AttentionReport):
            raise TypeError(f"cannot aggregate {type(other).__name__} into an AttentionReport")
        merged = dict(self.by_request)
        for request_id, report in other.by_request.items():
            mine = merged.get(request_id)
            if mine is None:
                merged[request_id] = report
            else:
                merged[request_id] = MassReport(report.token_index, mine.mass + report.mass)
        return AttentionReport(merged, self.ranks + other.ranks)
