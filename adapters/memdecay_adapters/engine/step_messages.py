"""What the scheduler and the worker tell each other in one engine step.

Both ride on vLLM's KV-connector channel, which works alike in-process, across processes and over
tensor-parallel ranks. The freed pages travel with the very step they belong to, so that no later step can
write through a stale row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from memdecay_adapters.engine.tier.messages import TierDirections
from memdecay_adapters.engine.tier.report import TierReport
from memdecay_agents.errors import IntegrityError


@dataclass
class StepDirections(KVConnectorMetadata):
    """Scheduler to worker: what to do before and during this step's forward pass."""

    evicted: dict[str, list[int]] = field(default_factory=dict)
    """Request id to the logical pages that left its block table since the last step."""

    observe: dict[str, int] = field(default_factory=dict)
    """Request id to the number of newest queries whose attention is to be measured."""

    norms_from: dict[str, int] = field(default_factory=dict)
    """Request id to the first token whose key norm is wanted, for requests in ``observe``; none where it is missing."""

    expected_rows: dict[str, list[int]] | None = None
    """Request id to its block-table row (page ids, null pages as 0); only when integrity is checked."""

    restored: dict[str, dict[int, int]] = field(default_factory=dict)
    """Request id to the pages that came back into its block table since the last step, with their page ids."""

    tier: TierDirections | None = None
    """What to do for the host tier; None: there is none."""


@dataclass
class MassReport:
    """The attention mass of one request in one step."""

    token_index: torch.Tensor
    """int64 ``[retained]``: logical token indices, ascending."""

    mass: torch.Tensor
    """float32 ``[retained]``: mean over the queries, heads and observed layers (summed over ranks)."""

    key_norms: torch.Tensor | None = None
    """float32 ``[k]``: norms of the newest k retained tokens' keys, mean over key heads and observed layers (summed
    over ranks)."""


@dataclass
class AttentionReport(KVConnectorWorkerMetadata):
    """Worker to scheduler: the measured attention of a step."""

    by_request: dict[str, MassReport] = field(default_factory=dict)
    ranks: int = 1
    """How many tensor-parallel ranks the masses are summed over."""
    nanoseconds: int = 0
    """What measuring took on the host of the slowest rank."""
    tier: TierReport = field(default_factory=TierReport)
    """What was found for the host tier."""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> AttentionReport:
        """Add another rank's report: the same tokens, other heads.

        Raises:
            IntegrityError: the other rank measured other requests or other tokens, so that its block tables
                are not this rank's.
        """
        if not isinstance(other, AttentionReport):
            raise TypeError(f"cannot aggregate {type(other).__name__} into an AttentionReport")
        if self.by_request.keys() != other.by_request.keys():
            _ranks_differ(f"one measured requests {sorted(self.by_request)}, another {sorted(other.by_request)}")
        merged = {}
        for request_id, mine in self.by_request.items():
            theirs = other.by_request[request_id]
            if not torch.equal(mine.token_index, theirs.token_index):
                _ranks_differ(f"they hold different tokens of request {request_id!r}")
            norms = mine.key_norms
            if norms is not None and theirs.key_norms is not None:
                norms = norms + theirs.key_norms
            merged[request_id] = MassReport(mine.token_index, mine.mass + theirs.mass, norms)
        slowest = max(self.nanoseconds, other.nanoseconds)
        return AttentionReport(merged, self.ranks + other.ranks, slowest, self.tier.added(other.tier))

    def averaged(self) -> Iterator[tuple[str, MassReport]]:
        """Request id and what was measured of it, as means over the ranks."""
        for request_id, summed in self.by_request.items():
            if self.ranks == 1:
                yield request_id, summed
                continue
            norms = None if summed.key_norms is None else summed.key_norms / self.ranks
            yield request_id, MassReport(summed.token_index, summed.mass / self.ranks, norms)

    def check_ranks(self, ranks: int) -> None:
        """Check that every one of the engine's ranks is in the sum.

        Raises:
            IntegrityError: some measured nothing in a step in which others did.
        """
        if self.ranks != ranks:
            _ranks_differ(f"{self.ranks} of {ranks} measured attention")


def _ranks_differ(rule: str) -> None:
    raise IntegrityError(
        where="tensor-parallel ranks",
        rule=rule,
        remedy="This is a fault of the engine, not of your request: please report it.",
    )
