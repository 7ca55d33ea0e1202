"""The worker's side of the host tier: copies before a step, evidence after its forward pass."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from memdecay_adapters.engine.tier.host_store import HostStore
from memdecay_adapters.engine.tier.messages import Probe, TierDirections
from memdecay_adapters.engine.tier.queries import QueryTails
from memdecay_adapters.engine.tier.report import TierReport
from memdecay_adapters.engine.tier.settings import HostTier
from memdecay_agents.errors import ObservationError
from memdecay_agents.recall import EvidenceArray, RetrievalHead, page_evidence

logger = logging.getLogger(__name__)

KeysOf = Callable[[torch.Tensor], torch.Tensor]
"""``[pages, page_size, 2 * head_dim]`` as a cache has them to ``[pages, page_size, head_dim]``: the keys in order."""


class LocalHead(NamedTuple):
    """A retrieval head's part on one tensor-parallel rank."""

    layer: int
    kv_head: int
    """Among this rank's."""


class Shard(NamedTuple):
    """What one rank has of a model."""

    rank: int
    ranks: int
    total_kv_heads: int

    def local(self, heads: Iterable[RetrievalHead]) -> list[LocalHead]:
        """The heads of which this rank has query heads. With more ranks than heads several ranks share one."""
        if self.ranks > self.total_kv_heads:
            copies = self.ranks // self.total_kv_heads
            return [LocalHead(head.layer, 0) for head in heads if self.rank // copies == head.kv_head]
        each = self.total_kv_heads // self.ranks
        return [LocalHead(head.layer, head.kv_head % each) for head in heads if head.kv_head // each == self.rank]


class WorkerTier:
    """One worker's tier.

    Args:
        tier: the user's settings.
        layers: the cache of each attention layer in model order, ``[num_pages, num_kv_heads, page_size,
            2 * head_dim]``.
        names: the layers' names in vLLM, in the same order.
        keys_of: takes the keys out of some pages of one head.
        scale: of attention logits.
        shard: what this rank has.
    """

    def __init__(
        self,
        tier: HostTier,
        layers: Sequence[torch.Tensor],
        names: Sequence[str],
        keys_of: KeysOf,
        scale: float,
        shard: Shard,
    ) -> None:
        self.store = HostStore(layers, tier, shard.ranks)
        self.queries: QueryTails | None = None
        """Where the attention backend puts queries; None: without recall by evidence."""
        self._layers, self._keys_of, self._scale = list(layers), keys_of, scale
        self._heads: list[LocalHead] = []
        if tier.recall is not None:
            self._heads = shard.local(tier.recall.heads or ())
            chosen = {names[head.layer]: head.layer for head in self._heads}
            self.queries = QueryTails(chosen, tier.recall.query_tokens)
        self._asks_again = tier.recall is not None and tier.recall.every_tokens is not None
        self._report = TierReport()
        self._probes: dict[str, Probe] = {}
        self._generators: dict[str, tuple[torch.Generator, torch.Tensor]] = {}

    def before_step(self, directions: TierDirections, finished: Iterable[str]) -> None:
        """Do the copies of a step, and wind back the generators of tokens that were discarded.

        Args:
            directions: the scheduler's.
            finished: requests that are gone.
        """
        for request_id in finished:
            self._forget(request_id)
        for request_id in directions.rewound:
            if request_id in self._generators:
                generator, state = self._generators[request_id]
                generator.set_state(state)
        self._generators = {}
        self._report = TierReport()
        if directions.copies:
            began = time.perf_counter()
            self.store.copy(directions.copies)
            self._report.copy_seconds = time.perf_counter() - began
        self._probes = directions.probes

    def before_sampling(self, generator_of: Callable[[str], Any]) -> None:
        """Remember the generators of requests whose token may be discarded.

        Args:
            generator_of: a request's own generator, None where it has none.
        """
        for request_id in self._probes:
            if isinstance(generator := generator_of(request_id), torch.Generator):
                self._generators[request_id] = generator, generator.get_state()

    def report(self) -> TierReport | None:
        """What the step's queries say of the probed pages, and what the tier took; None: nothing."""
        began = time.perf_counter()
        for request_id, probe in self._probes.items():
            self._report.evidence[request_id] = self._evidence(request_id, probe)
            if self.queries is not None and not self._asks_again:
                self.queries.forget(request_id)
        if self._probes:
            self._report.evidence_seconds = time.perf_counter() - began
        return self._report if self._report else None

    def _forget(self, request_id: str) -> None:
        if self.queries is not None:
            self.queries.forget(request_id)

    def _evidence(self, request_id: str, probe: Probe) -> EvidenceArray:
        """float64 ``[slots + blocks]``, this rank's heads only; NaN where there is none to be had."""
        count = len(probe.slots) + len(probe.blocks)
        if not self._heads:
            return np.zeros(count)
        tails = self.queries.of(request_id) if self.queries is not None else {}
        if not all(head.layer in tails for head in self._heads):
            return np.full(count, np.nan)
        group = next(iter(tails.values())).shape[1] // self._layers[0].shape[1]
        queries, keys = [], []
        for layer, kv_head in self._heads:
            queries.append(tails[layer][:, kv_head * group : (kv_head + 1) * group].float())
            keys.append(self._keys(probe, layer, kv_head))
        valid = np.ones((count, self._layers[0].shape[2]), dtype=np.bool_)
        try:
            return page_evidence(
                torch.stack(queries, dim=1).cpu().numpy(), torch.stack(keys, dim=2).numpy(), valid, self._scale
            )
        except ObservationError as error:
            logger.error("no evidence for request %s: %s", request_id, error)
            return np.full(count, np.nan)

    def _keys(self, probe: Probe, layer: int, kv_head: int) -> torch.Tensor:
        """float32 ``[pages, page_size, head_dim]`` on the host: of the tier's pages, then of the device's."""
        cells = []
        if probe.slots:
            cells.append(self.store.cells(probe.slots, layer, kv_head))
        if probe.blocks:
            cells.append(self._layers[layer][torch.tensor(probe.blocks), kv_head].cpu())
        return self._keys_of(torch.cat(cells)).float()
