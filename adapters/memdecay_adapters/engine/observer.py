"""The worker's side of measuring: which requests and layers to observe in this step, and the sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch

from memdecay_adapters.engine.step_messages import AttentionReport, MassReport, StepDirections
from memdecay_adapters.engine.tier.queries import QueryTails
from memdecay_agents.errors import ConfigError
from memdecay_kernels import KeyLayout, MassPlan, key_norms


class KeyNorms:
    """Norms of the keys in some rows' newest pages, summed over the observed layers.

    Args:
        pages: int64 ``[N]``: page ids, row after row.
        counts: how many of them are each row's; they add up to N.
        page_size_tokens: tokens in a page.
    """

    def __init__(self, pages: torch.Tensor, counts: tuple[int, ...], page_size_tokens: int) -> None:
        self.pages, self.counts, self.page_size_tokens = pages, counts, page_size_tokens
        self._sums: torch.Tensor | None = None
        self._layers = 0

    def add_layer(self, key_cache: torch.Tensor, layout: KeyLayout | None) -> None:
        """Add one layer's norms, means over the key heads.

        Args:
            key_cache: the layer's keys, as for `memdecay_kernels.attention_mass`.
            layout: how they are packed; None: token after token.
        """
        self._sums = key_norms(key_cache, layout, self.pages, out=self._sums)
        self._layers += 1

    def of_row(self, row: int, kept_tokens: int) -> torch.Tensor | None:
        """Norms of a row's newest tokens, float32 ``[k]`` on the host, mean over the layers; None: none are wanted.

        Args:
            row: which row.
            kept_tokens: tokens that it retains; the last page may be partial.
        """
        if self._sums is None or not self.counts[row]:
            return None
        first = sum(self.counts[:row])
        mine = self._sums[first : first + self.counts[row]]
        older_pages = -(-kept_tokens // self.page_size_tokens) - self.counts[row]
        known = kept_tokens - older_pages * self.page_size_tokens
        return (mine.flatten()[:known] / self._layers).cpu()


class ObservedRows(NamedTuple):
    """The requests whose attention is measured in a step."""

    request_ids: tuple[str, ...]
    token_index: tuple[torch.Tensor, ...]
    """int64 ``[retained]`` each: the logical index of each retained token."""
    plan: MassPlan
    """Sums the mass over the observed layers."""
    norms: KeyNorms | None = None
    """Sums key norms over the observed layers, where some are wanted."""


class StepObserver:
    """Holds a step's directions for the attention backend and collects what it measures.

    One per worker; the worker binds it to the metadata builders and to the connector.
    """

    def __init__(self) -> None:
        self.directions = StepDirections()
        self.request_ids: Callable[[], list[str]] = list
        """The batch's request ids in row order; read when rows are built, after the runner's reordering."""
        self.queries: QueryTails | None = None
        """Keeps the newest queries of turns that may recall; None: none do."""
        self._rows: list[ObservedRows] = []

    def start_step(self, directions: StepDirections, request_ids: Callable[[], list[str]]) -> None:
        """Take a step's directions."""
        self.directions = directions
        self.request_ids = request_ids
        self._rows = []

    def watch(self, rows: ObservedRows) -> None:
        """Register rows; their mass is added by the attention layers of this step."""
        self._rows.append(rows)

    def report(self) -> AttentionReport | None:
        """What was measured in this step; None if nothing was."""
        measured = {}
        for rows in self._rows:
            if not rows.plan.layers:
                continue
            rows.plan.finish()
            mass = (rows.plan.mass / rows.plan.layers).cpu()
            for row, (request_id, index) in enumerate(zip(rows.request_ids, rows.token_index, strict=True)):
                norms = None if rows.norms is None else rows.norms.of_row(row, index.numel())
                measured[request_id] = MassReport(index, mass[row, : index.numel()], norms)
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
