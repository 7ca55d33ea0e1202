"""Block-table compaction and page copies on the GPU. Not run on a GPU: tested by emulation on the CPU."""

from __future__ import annotations

import ctypes
import math

import torch

from memdecay_kernels.cuda._checks import aligned, check_tensor, refuse
from memdecay_kernels.cuda.launcher import Grid, Launcher

_COMPACT_THREADS = 256
_COPY_THREADS, _COPY_WORDS_OF_THREAD, _WIDE_BYTES = 256, 4, 16
_MOST_PAGES = 65535  # of one launch


class _CompactParameters(ctypes.Structure):
    """``CompactParameters`` of the kernel."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("block_table", "seq_lens", "out_table", "kept_tokens", "kept_pages")),
        ("table_stride", ctypes.c_int64), ("out_stride", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in (
            "columns", "out_columns", "page_size", "null_page", "empty_rows_keep_length")),
    )  # fmt: skip


class _CopyParameters(ctypes.Structure):
    """``CopyParameters`` of the kernels."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("source", "target", "source_pages", "target_pages")),
        *((name, ctypes.c_int64) for name in (
            "source_stride", "target_stride", "page_bytes", "source_page_count", "target_page_count")),
    )  # fmt: skip


def compact_table(
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    page_size_tokens: int,
    null_page: int,
    out_table: torch.Tensor,
    kept_tokens: torch.Tensor,
    kept_pages: torch.Tensor | None,
    *,
    empty_rows_keep_length: bool,
    launcher: Launcher,
) -> None:
    """Write compacted rows; the first ``rows`` rows of the outputs are overwritten, and nothing is read back.

    Args:
        block_table: int32 ``[rows, columns]``, see `memdecay_kernels.compact_block_table`.
        seq_lens: int32 ``[rows]``, tokens.
        page_size_tokens: tokens in a page.
        null_page: the id that marks an evicted page.
        out_table: int32, at least ``[rows, columns]``: kept page ids first, zeros behind; must not overlap
            ``block_table``.
        kept_tokens: int32, at least ``[rows]``.
        kept_pages: bool ``[rows, columns]``, contiguous: which entries were kept; None: not wanted.
        empty_rows_keep_length: a row without any kept page keeps its length, as in `compact_rows_into`.
        launcher: the device.

    Raises:
        CudaArgumentError: tensors that do not fit together.
    """
    check_tensor(block_table, "block_table", torch.int32, (None, None))
    rows, columns = block_table.shape
    check_tensor(seq_lens, "seq_lens", torch.int32, (rows,))
    check_tensor(out_table, "out_table", torch.int32, (None, None))
    check_tensor(kept_tokens, "kept_tokens", torch.int32, (None,))
    if out_table.shape[0] < rows or out_table.shape[1] < columns or kept_tokens.shape[0] < rows:
        raise refuse(
            "out_table", f"{rows} rows of {columns} pages do not fit buffers of {tuple(out_table.shape)} and "
            f"{tuple(kept_tokens.shape)}", "Make larger buffers."
        )  # fmt: skip
    if kept_pages is not None:
        check_tensor(kept_pages, "kept_pages", torch.bool, (rows, columns))
        if not kept_pages.is_contiguous():
            raise refuse("kept_pages", f"its strides are {kept_pages.stride()}", "Pass a contiguous tensor.")
    parameters = _CompactParameters(
        block_table=block_table.data_ptr(), seq_lens=seq_lens.data_ptr(), out_table=out_table.data_ptr(),
        kept_tokens=kept_tokens.data_ptr(), kept_pages=None if kept_pages is None else kept_pages.data_ptr(),
        table_stride=block_table.stride(0), out_stride=out_table.stride(0), columns=columns,
        out_columns=out_table.shape[1], page_size=page_size_tokens, null_page=null_page,
        empty_rows_keep_length=empty_rows_keep_length,
    )  # fmt: skip
    tensors = [block_table, seq_lens, out_table, kept_tokens]
    tensors += [] if kept_pages is None else [kept_pages]
    launcher.launch("compact_table", Grid(rows), _COMPACT_THREADS, parameters, tensors)


def copy_pages(
    source: torch.Tensor,
    source_pages: torch.Tensor,
    target: torch.Tensor,
    target_pages: torch.Tensor,
    *,
    launcher: Launcher,
) -> None:
    """Copy whole pages, bit for bit; a page that is not among the pool's stops the kernel.

    Args:
        source: ``[num_source_pages, ...]``, pages contiguous; on the device or in pinned memory of the host.
        source_pages: int64 ``[n]``, on the device.
        target: ``[num_target_pages, ...]`` of the same page shape and dtype, on the device or pinned.
        target_pages: int64 ``[n]``, distinct, on the device.
        launcher: the device.

    Raises:
        CudaArgumentError: tensors that do not fit together.
    """
    if source.shape[1:] != target.shape[1:] or source.dtype != target.dtype:
        raise refuse(
            "target", f"pages of {list(source.shape[1:])} {source.dtype} do not fit {list(target.shape[1:])} "
            f"{target.dtype}", "Copy between caches of one page shape and dtype."
        )  # fmt: skip
    check_tensor(source_pages, "source_pages", torch.int64, (None,))
    check_tensor(target_pages, "target_pages", torch.int64, (source_pages.shape[0],))
    for name, cache in (("source", source), ("target", target)):
        if cache.shape[0] and not cache[0].is_contiguous():
            raise refuse(name, f"its pages have strides {cache.stride()[1:]}", "Pages have to be contiguous.")
    page_bytes = math.prod(source.shape[1:]) * source.element_size()
    wide = aligned((source, target), (source.stride(0), target.stride(0)), _WIDE_BYTES) and not page_bytes % _WIDE_BYTES
    word_bytes, kernel = (_WIDE_BYTES, "copy_pages_wide") if wide else (1, "copy_pages_bytes")
    blocks = math.ceil(page_bytes / word_bytes / (_COPY_THREADS * _COPY_WORDS_OF_THREAD))
    for first in range(0, source_pages.shape[0], _MOST_PAGES):
        from_pages, to_pages = (pages[first : first + _MOST_PAGES] for pages in (source_pages, target_pages))
        parameters = _CopyParameters(
            source=source.data_ptr(), target=target.data_ptr(), source_pages=from_pages.data_ptr(),
            target_pages=to_pages.data_ptr(), source_stride=source.stride(0) * source.element_size(),
            target_stride=target.stride(0) * target.element_size(), page_bytes=page_bytes,
            source_page_count=source.shape[0], target_page_count=target.shape[0],
        )  # fmt: skip
        tensors = (source, target, from_pages, to_pages)
        launcher.launch(kernel, Grid(blocks, from_pages.shape[0]), _COPY_THREADS, parameters, tensors)
