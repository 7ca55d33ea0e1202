"""The operations that region-aware eviction needs on paged key-value caches.

The torch float32 references in ``reference/`` define each operation. On the host a native library serves them where
it was built (C++ for AMX, AVX-512, AVX2 or any other processor, chosen at run time); `implementation_name` says what
is in use. Names are imported on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memdecay_kernels.block_tables import CompactTable, compact_block_table
    from memdecay_kernels.compact_rows import CompactRowBuffers, compact_rows_into
    from memdecay_kernels.copies import copy_pages
    from memdecay_kernels.implementations import implementation_name
    from memdecay_kernels.layouts import KeyLayout, recover_key_layout
    from memdecay_kernels.mass import attention_mass
    from memdecay_kernels.mass_plan import MassPlan
    from memdecay_kernels.norms import key_norms
    from memdecay_kernels.scores import observe_tokens, score_pages
    from memdecay_kernels.selection import select_pages
    from memdecay_kernels.terms import ObserveRule, ScoreTerms, TokenColumns

_HOME = {
    "attention_mass": "mass",
    "MassPlan": "mass_plan",
    "CompactTable": "block_tables",
    "compact_block_table": "block_tables",
    "CompactRowBuffers": "compact_rows",
    "compact_rows_into": "compact_rows",
    "KeyLayout": "layouts",
    "recover_key_layout": "layouts",
    "copy_pages": "copies",
    "select_pages": "selection",
    "score_pages": "scores",
    "observe_tokens": "scores",
    "ObserveRule": "terms",
    "ScoreTerms": "terms",
    "TokenColumns": "terms",
    "key_norms": "norms",
    "implementation_name": "implementations",
}

__all__ = [
    "CompactRowBuffers",
    "CompactTable",
    "KeyLayout",
    "MassPlan",
    "ObserveRule",
    "ScoreTerms",
    "TokenColumns",
    "attention_mass",
    "compact_block_table",
    "compact_rows_into",
    "copy_pages",
    "implementation_name",
    "key_norms",
    "observe_tokens",
    "recover_key_layout",
    "score_pages",
    "select_pages",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
