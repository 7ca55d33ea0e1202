"""Argument records of the native operations, field by field as in ``src/api.h``.

A record is packed into bytes in one go: several times faster than filling a ctypes structure.
"""

from __future__ import annotations

import ctypes
import struct
from operator import itemgetter
from typing import Any

POINTER, INT64, INT32, FLOAT = "P", "q", "i", "f"


class Record:
    """How one operation's arguments are packed, with the compiler's alignment; the first field is the size in bytes.

    Args:
        groups: fields in order: their kind, and their names between spaces.
    """

    def __init__(self, *groups: tuple[str, str]) -> None:
        fields = [(name, kind) for kind, names in groups for name in names.split()]
        self._kinds = INT64 + "".join(kind for _, kind in fields)
        self._pack = struct.Struct("@" + self._kinds + "0q").pack  # 0q: the end is padded as the compiler pads it
        self._pick = itemgetter(*(name for name, _ in fields))
        self.names = [name for name, _ in fields]
        """Of the fields, in order."""
        self.size_bytes = struct.calcsize("@" + self._kinds + "0q")

    def __call__(self, **values: Any) -> bytes:
        """The record; addresses and numbers by name.

        Raises:
            KeyError: a field is missing.
            TypeError: a name is no field.
        """
        if len(values) > len(self.names):
            raise TypeError(f"got {sorted(values)}, not {sorted(self.names)}")
        return self._pack(self.size_bytes, *self._pick(values))

    def in_order(self, *values: int | float) -> bytes:
        """The record; addresses and numbers in the order of the fields: half the time of a call by name."""
        return self._pack(self.size_bytes, *values)

    def offset_bytes(self, field: str) -> int:
        """Where a field lies in the record."""
        before = self._kinds[: 1 + self.names.index(field)]
        return struct.calcsize("@" + before + "0" + self._kinds[len(before)])


class ReusedRecord:
    """A record in memory of its own, in which addresses can be exchanged from call to call.

    Args:
        kind: the record's kind.
        packed: what it holds first.
        fields: names of the addresses that change.
    """

    def __init__(self, kind: Record, packed: bytes, *fields: str) -> None:
        self._memory = ctypes.create_string_buffer(packed, len(packed))
        self.address = ctypes.addressof(self._memory)
        self.addresses = [ctypes.c_void_p.from_buffer(self._memory, kind.offset_bytes(field)) for field in fields]
        """Those of ``fields``: their ``value`` is written into the record."""


MassArgs = Record(
    (POINTER, "query"),
    (INT64, "query_token_stride query_head_stride"),
    (POINTER, "keys"),
    (INT64, "key_page_stride key_head_stride"),
    (POINTER, "offsets block_table"),
    (INT64, "table_stride"),
    (POINTER, "context_lens query_ends windows out"),
    (INT64, "out_stride"),
    (
        INT32,
        "requests out_columns num_heads num_kv_heads head_dim page_size query_dtype key_dtype tile_kind"
        " reduce_max accumulate threads",
    ),
    (FLOAT, "scale"),
)
"""attention_mass."""

NormArgs = Record(
    (POINTER, "keys"),
    (INT64, "key_page_stride key_head_stride"),
    (POINTER, "offsets pages out"),
    (INT64, "count"),
    (INT32, "num_kv_heads head_dim page_size key_dtype tile_kind"),
)
"""key_norms."""

ObserveArgs = Record(
    (
        POINTER,
        "refreshed_at_ticks ewma_mass accumulated_relative salience_sum salience_weight last_query_mass"
        " token_index mass newest_mass",
    ),
    (INT64, "count clock_ticks"),
    (FLOAT, "keep weight salience_floor"),
    (INT32, "salience_neighbours"),
    (INT64, "salience_min_age_tokens"),
    (FLOAT, "refresh_threshold"),
    (INT32, "refresh"),
)
"""observe_tokens."""

ScoreArgs = Record(
    (
        POINTER,
        "region flags refreshed_at_ticks attention salience_sum salience_weight base_priority decay pages"
        " evictable out",
    ),
    (INT64, "page_count processed_tokens clock_ticks"),
    (INT32, "regions page_size power_law attention_ranks salience_ranks"),
    (FLOAT, "superseded_factor attention_weight salience_weight_factor"),
)
"""score_pages."""

FactsArgs = Record(
    (POINTER, "region flags pinned tie_rank pages page_region page_pinned page_superseded"),
    (INT64, "page_count registered_tokens"),
    (INT32, "regions page_size"),
)
"""page_facts."""

SelectArgs = Record((POINTER, "scores evictable out"), (INT64, "page_count count"))
"""select_pages."""

RankArgs = Record((POINTER, "values ranks"), (INT64, "count"))
"""unit_ranks."""

SalienceArgs = Record((POINTER, "relative_mass salience"), (INT64, "count"), (FLOAT, "floor"), (INT32, "neighbours"))
"""local_salience."""

CompactArgs = Record(
    (POINTER, "block_table"),
    (INT64, "table_stride"),
    (POINTER, "seq_lens out_table"),
    (INT64, "out_stride"),
    (POINTER, "kept_tokens kept_pages"),
    (INT32, "rows columns page_size null_page"),
)
"""compact_block_table."""

CopyArgs = Record(
    (POINTER, "source target source_pages target_pages"),
    (INT64, "count source_stride_bytes target_stride_bytes page_bytes"),
    (INT32, "threads"),
)
"""copy_pages."""
