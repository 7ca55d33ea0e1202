"""The operations that region-aware eviction needs on paged key-value caches.

Here are the torch float32 references, which define each operation; the names are imported on first use,
so that importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memdecay_kernels.block_tables import CompactTable, compact_block_table
    from memdecay_kernels.compact_rows import CompactRowBuffers, compact_rows_into
    from memdecay_kernels.layouts import KeyLayout, recover_key_layout
    from memdecay_kernels.mass import attention_mass
    from memdecay_kernels.pages import copy_pages, score_pages, select_pages

_HOME = {
    "attention_mass": "mass",
    "CompactTable": "block_tables",
    "compact_block_table": "block_tables",
    "CompactRowBuffers": "compact_rows",
    "compact_rows_into": "compact_rows",
    "KeyLayout": "layouts",
    "recover_key_layout": "layouts",
    "copy_pages": "pages",
    "score_pages": "pages",
    "select_pages": "pages",
}

__all__ = [
    "CompactRowBuffers",
    "CompactTable",
    "KeyLayout",
    "attention_mass",
    "compact_block_table",
    "compact_rows_into",
    "copy_pages",
    "recover_key_layout",
    "score_pages",
    "select_pages",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
