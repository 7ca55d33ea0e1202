"""The newest queries of turns that may recall, kept from step to step in a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from memdecay_adapters.engine.tier.messages import QueryWindow


@dataclass
class _Tail:
    end: int = 0
    """One past the last token whose query is kept."""
    by_layer: dict[int, torch.Tensor] = field(default_factory=dict)
    """``[tokens, num_heads, head_dim]`` each, after the rotary embedding."""


class QueryTails:
    """Keeps the queries of the chosen layers.

    Args:
        layers: index of a layer in the model, by its name in vLLM.
        most_tokens: kept of each request.
    """

    def __init__(self, layers: Mapping[str, int], most_tokens: int) -> None:
        self._layers = layers
        self._most_tokens = most_tokens
        self._tails: dict[str, _Tail] = {}
        self._rows: list[tuple[_Tail, int, int, bool]] = []

    def begin(self, windows: Mapping[str, QueryWindow], request_ids: Sequence[str], query_start: Sequence[int]) -> None:
        """A step's rows are known.

        Args:
            windows: what to keep, by request.
            request_ids: the batch's, in row order.
            query_start: where each row's queries start among the batch's tokens, and where the last one ends.
        """
        self._rows = []
        for row, request_id in enumerate(request_ids):
            window = windows.get(request_id)
            if window is not None:
                tail = self._tails.setdefault(request_id, _Tail())
                goes_on = tail.end == window.first and bool(tail.by_layer)
                tail.end = window.first + window.tokens
                end = query_start[row + 1]
                self._rows.append((tail, end - window.tokens, end, goes_on))

    def take(self, layer_name: str, query: torch.Tensor) -> None:
        """A layer's queries, ``[tokens, num_heads, head_dim]``; nothing is kept of a layer that was not chosen."""
        layer = self._layers.get(layer_name)
        if layer is None:
            return
        for tail, first, end, goes_on in self._rows:
            newest = query[first:end].clone()
            if goes_on:
                newest = torch.cat([tail.by_layer[layer], newest])
            tail.by_layer[layer] = newest[-self._most_tokens :]

    def of(self, request_id: str) -> Mapping[int, torch.Tensor]:
        """A request's queries by layer."""
        return self._tails[request_id].by_layer if request_id in self._tails else {}

    def forget(self, request_id: str) -> None:
        """A request ended, or its queries were used."""
        self._tails.pop(request_id, None)
