"""The worker's side of measuring: which requests and layers to observe in this step, and the sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from memdecay_adapters.engine.step_messages import AttentionReport, MassReport, StepDirections
from memdecay_agents.errors import ConfigError


@dataclass
class ObservedRow:
    """One request whose attention is measured in this step."""

    request_id: str
    pages: torch.Tensor
    """int64 ``[P]``: retained page ids, logical order."""
    token_index: torch.Tensor
    """int64 ``[retained]``: the logical index of each retained token."""
    query_end: int
    """One past the row's last query among the batch's tokens."""
    queries: int
    """The newest queries that are measured."""
    norm_pages: int = 0
    """The newest pages of ``pages`` whose tokens' key norms are wanted; 0: none."""
    mass: torch.Tensor | None = None
    """float32 ``[retained]``, on the attention's device: summed over the layers so far."""
    norms: torch.Tensor | None = None
    """float32 ``[norm_pages * page size]``: summed over the layers so far."""
    layers: int = 0

    def add_norms(self, keys: torch.Tensor) -> None:
        """Add one layer's norms.

        Args:
            keys: ``[norm_pages, num_kv_heads, page_size, head_dim]``, any float type: the keys of the newest pages.
        """
        norms = torch.linalg.vector_norm(keys, dim=-1, dtype=torch.float32).mean(1).flatten()
        self.norms = norms if self.norms is None else self.norms + norms

    def report(self) -> MassReport:
        """What was measured, means over the layers, on the host."""
        assert self.mass is not None
        norms = None
        if self.norms is not None:
            page_size = self.norms.numel() // self.norm_pages
            known = self.token_index.numel() - (self.pages.numel() - self.norm_pages) * page_size
            norms = (self.norms[:known] / self.layers).cpu()  # the last page may be partial
        return MassReport(self.token_index, (self.mass / self.layers).cpu(), norms)


class StepObserver:
    """Holds a step's directions for the attention backend and collects what it measures.

    One per worker; the worker binds it to the metadata builders and to the connector.
    """

    def __init__(self) -> None:
        self.directions = StepDirections()
        self.request_ids: Callable[[], list[str]] = list
        """The batch's request ids in row order; read when rows are built, after the runner's reordering."""
        self._rows: list[ObservedRow] = []

    def start_step(self, directions: StepDirections, request_ids: Callable[[], list[str]]) -> None:
        """Take a step's directions."""
        self.directions = directions
        self.request_ids = request_ids
        self._rows = []

    def watch(self, row: ObservedRow) -> None:
        """Register a row; its mass is added by the attention layers of this step."""
        self._rows.append(row)

    def report(self) -> AttentionReport | None:
        """What was measured in this step; None if nothing was."""
        measured = {row.request_id: row.report() for row in self._rows if row.mass is not None}
        self._rows = []
        return AttentionReport(measured) if measured else None


def observed_layer_names(
    layer_names: list[str], observed_layers: Literal["all"] | int | Sequence[int]
) -> frozenset[str]:
    """Choose the layers whose attention is measured.

    Args:
        layer_names: attention layers in model order.
        observed_layers: "all", layer indices, or a stride ``k``: the middle one of every ``k`` layers.

    Raises:
        ConfigError: an index beyond the model's layers.
    """
    count = len(layer_names)
    if observed_layers == "all":
        return frozenset(layer_names)
    if isinstance(observed_layers, int):
        stride = min(observed_layers, count)
        return frozenset(layer_names[stride // 2 :: stride])
    beyond = [index for index in observed_layers if not 0 <= index < count]
    if beyond:
        raise ConfigError(
            where=f"observed_layers {observed_layers}",
            rule=f"layers {beyond} do not exist in a model of {count} attention layers",
            remedy=f"Use indices from 0 to {count - 1}, a stride, or 'all'.",
        )
    return frozenset(layer_names[index] for index in observed_layers)
