"""MassPlan: the attention mass of one step's rows, summed over its layers with one short call a layer."""

from __future__ import annotations

import torch

from memdecay_kernels.checks import check_tensor
from memdecay_kernels.implementations import native_for
from memdecay_kernels.layouts import KeyLayout
from memdecay_kernels.mass import FLOATS, attention_mass, check_pages, check_rows, check_shapes
from memdecay_kernels.native.mass_call import MassCall, MassRows

MAX_LAYERS = 64
"""Layers that one call of a device measures at most."""


class MassPlan:
    """Rows whose attention is measured in a step, on the host; see `attention_mass` for the arguments.

    Args:
        block_table: int32 ``[R, P]``, without evicted pages.
        context_lens: int32 ``[R]``: retained tokens.
        query_ends: int32 ``[R]``: one past each row's last query.
        windows: int32 ``[R]``: newest queries to measure.
        page_size_tokens: tokens in a page.
        query_tokens: queries of the step.
        head_reduce: "mean" or "max" over the query heads.

    Raises:
        ValueError: rows that do not fit.
    """

    def __init__(
        self,
        block_table: torch.Tensor,
        context_lens: torch.Tensor,
        query_ends: torch.Tensor,
        windows: torch.Tensor,
        *,
        page_size_tokens: int,
        query_tokens: int,
        head_reduce: str = "mean",
    ) -> None:
        check_tensor("block_table", block_table, (torch.int32,), (None, None))
        for name, row in (("context_lens", context_lens), ("query_ends", query_ends), ("windows", windows)):
            check_tensor(name, row, (torch.int32,), (block_table.shape[0],))
        longest = int(context_lens.max()) if context_lens.numel() else 0
        self.rows = MassRows(block_table, context_lens, query_ends, windows)
        self.head_reduce, self.page_size_tokens = head_reduce, page_size_tokens
        self.mass = torch.zeros(block_table.shape[0], longest)
        """float32 ``[R, longest context]``, where the queries are: summed over the layers, once `finish` was called."""
        self.layers = 0
        """How many layers are in the sum."""
        check_rows(*self.rows, page_size_tokens=page_size_tokens, query_tokens=query_tokens, columns=longest)
        self.native_call: MassCall | None = None
        self._waiting: list[tuple[torch.Tensor, torch.Tensor]] = []

    def add_layer(self, query: torch.Tensor, key_cache: torch.Tensor, layout: KeyLayout | None, scale: float) -> None:
        """Add one layer's mass.

        Args:
            query: ``[T, num_heads, head_dim]``.
            key_cache: the layer's keys, packed as ``layout`` says.
            layout: None: token after token.
            scale: the softmax scale.

        Raises:
            ValueError: shapes or dtypes that do not fit.
        """
        call = self.native_call
        if call is None or not call.fits(query, key_cache, layout, scale):
            self.finish()
            if self.mass.device != query.device:
                self.mass = self.mass.to(query.device)
            call = self.native_call = self._new_call(query, key_cache, layout, scale)
        if call is not None and call.batches_layers:
            self._waiting.append((query.clone(), key_cache))  # a later layer may reuse the queries' memory
        elif call is not None:
            call.run(query, key_cache)
        else:
            table, lengths, ends, windows = self.rows
            attention_mass(
                query, key_cache, layout, table, lengths, scale, query_ends=ends, windows=windows,
                head_reduce=self.head_reduce, out=self.mass, accumulate=True,
            )  # fmt: skip
        self.layers += 1

    def finish(self) -> None:
        """Measure the layers that wait: where one launch serves many, they are collected up to the step's end."""
        if self._waiting and self.native_call is not None:
            queries, key_caches = zip(*self._waiting, strict=True)
            for first in range(0, len(queries), MAX_LAYERS):
                self.native_call.run_layers(queries[first : first + MAX_LAYERS], key_caches[first : first + MAX_LAYERS])
            self._waiting = []

    def _new_call(
        self, query: torch.Tensor, key_cache: torch.Tensor, layout: KeyLayout | None, scale: float
    ) -> MassCall | None:
        check_tensor("query", query, FLOATS, (None, None, None))
        check_tensor("key_cache", key_cache, FLOATS, (None, None, None) if layout is not None else (None,) * 4)
        check_shapes(query, key_cache, layout, self.head_reduce)
        check_pages(self.rows.block_table, self.rows.context_lens, self.page_size_tokens, key_cache.shape[0])
        native = native_for("mass_call", query.device)
        if native is None:
            return None
        call: MassCall | None = native.mass_call(
            self.rows, query, key_cache, layout, scale, self.head_reduce, self.mass, True
        )
        return call
