"""A native attention_mass call whose record is filled once a step: two addresses change from layer to layer."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from memdecay_kernels.layouts import KeyLayout
from memdecay_kernels.native.library import Library
from memdecay_kernels.native.records import MassArgs, ReusedRecord

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class MassRows(NamedTuple):
    """Whose attention is measured; int32, contiguous along the last axis."""

    block_table: torch.Tensor
    """``[R, P]``: retained pages."""
    context_lens: torch.Tensor
    """``[R]``: retained tokens."""
    query_ends: torch.Tensor
    """``[R]``: one past each row's last query."""
    windows: torch.Tensor
    """``[R]``: newest queries to measure."""

    def readable(self) -> bool:
        """Whether the library can read them as they are."""
        return all(row.dtype is torch.int32 and (row.numel() < 2 or row.stride(-1) == 1) for row in self)


class MassCall:
    """The record of one shape of queries and keys.

    Args:
        library: with its instruction set.
        rows: `MassRows`, readable.
        query: ``[T, num_heads, head_dim]``, the last axis contiguous.
        key_cache: packed keys, the last axis contiguous.
        layout: how they are packed; None: token after token.
        scale: the softmax scale.
        head_reduce: "mean" or "max".
        out: float32 ``[R, M]``, the last axis contiguous.
        accumulate: add to ``out``.
    """

    def __init__(
        self,
        library: Library,
        rows: MassRows,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        layout: KeyLayout | None,
        scale: float,
        head_reduce: str,
        out: torch.Tensor,
        accumulate: bool,
    ) -> None:
        self._library = library
        self._shape = _shape(query, key_cache, layout, scale)
        if layout is None:
            layout = plain_layout(key_cache.shape[2], key_cache.shape[3], key_cache.stride(2))
        self._alive = (rows, layout, out)
        packed = MassArgs(
            query=query.data_ptr(),
            keys=key_cache.data_ptr(),
            query_token_stride=query.stride(0),
            query_head_stride=query.stride(1),
            key_page_stride=key_cache.stride(0),
            key_head_stride=key_cache.stride(1),
            offsets=layout.offsets32.data_ptr(),
            block_table=rows.block_table.data_ptr(),
            table_stride=rows.block_table.stride(0),
            context_lens=rows.context_lens.data_ptr(),
            query_ends=rows.query_ends.data_ptr(),
            windows=rows.windows.data_ptr(),
            out=out.data_ptr(),
            out_stride=out.stride(0),
            requests=rows.block_table.shape[0],
            out_columns=out.shape[1],
            num_heads=query.shape[1],
            num_kv_heads=key_cache.shape[1],
            head_dim=query.shape[2],
            page_size=layout.page_size_tokens,
            query_dtype=DTYPES[query.dtype],
            key_dtype=DTYPES[key_cache.dtype],
            tile_kind=layout.tile_kind,
            reduce_max=head_reduce == "max",
            accumulate=accumulate,
            threads=torch.get_num_threads(),
            scale=scale,
        )
        self._record = ReusedRecord(MassArgs, packed, "keys", "query")
        self._keys, self._query = self._record.addresses
        self._attend, self._at = library.function("attention_mass"), self._record.address

    batches_layers = False
    """Each layer is measured while its keys are near."""

    def fits(self, query: torch.Tensor, key_cache: torch.Tensor, layout: KeyLayout | None, scale: float) -> bool:
        """Whether another layer has the shape that the record was filled for."""
        return self._shape == _shape(query, key_cache, layout, scale)

    def run(self, query: torch.Tensor, key_cache: torch.Tensor) -> None:
        """Measure one layer.

        Args:
            query: of the shape and strides that the record was filled for.
            key_cache: likewise.
        """
        self._keys.value, self._query.value = key_cache.data_ptr(), query.data_ptr()
        if self._attend(self._at):
            self._library.refuse()

    def run_layers(self, queries: Sequence[torch.Tensor], key_caches: Sequence[torch.Tensor]) -> None:
        """Measure several layers, one after the other."""
        for query, key_cache in zip(queries, key_caches, strict=True):
            self.run(query, key_cache)

    def read_keys(self, key_cache: torch.Tensor) -> None:
        """Read the same keys and do nothing else: what a benchmark takes as the machine's speed.

        Args:
            key_cache: of the shape and strides that the record was filled for.
        """
        self._keys.value = key_cache.data_ptr()
        self._library.call("read_keys", self._record.address)


def _shape(query: torch.Tensor, keys: torch.Tensor, layout: KeyLayout | None, scale: float) -> tuple[object, ...]:
    return query.shape, query.stride(), query.dtype, keys.shape, keys.stride(), keys.dtype, id(layout), scale


@functools.lru_cache(maxsize=16)
def plain_layout(page_size_tokens: int, head_dim: int, token_stride: int) -> KeyLayout:
    """Token after token, ``token_stride`` elements from one to the next."""
    tokens = torch.arange(page_size_tokens) * token_stride
    return KeyLayout(tokens[:, None] + torch.arange(head_dim), "plain")
