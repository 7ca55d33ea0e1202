"""Argument records of the native operations, field by field as in ``src/api.h``."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p
from typing import Any


class Record(ctypes.Structure):
    """A record that knows its own size, which the library checks."""

    def __init__(self, **values: Any) -> None:
        super().__init__(size_bytes=ctypes.sizeof(type(self)), **values)


def _fields(*groups: tuple[type, str]) -> list[tuple[str, type]]:
    return [("size_bytes", c_int64), *((name, kind) for kind, names in groups for name in names.split())]


class MassArgs(Record):
    """attention_mass."""

    _fields_ = _fields(
        (c_void_p, "query"), (c_int64, "query_token_stride query_head_stride"),
        (c_void_p, "keys"), (c_int64, "key_page_stride key_head_stride"),
        (c_void_p, "offsets block_table"), (c_int64, "table_stride"),
        (c_void_p, "context_lens query_ends windows out"), (c_int64, "out_stride"),
        (c_int32, "requests out_columns num_heads num_kv_heads head_dim page_size query_dtype key_dtype tile_kind"
                  " reduce_max accumulate threads"),
        (c_float, "scale"),
    )  # fmt: skip


class ObserveArgs(Record):
    """observe_tokens."""

    _fields_ = _fields(
        (c_void_p, "refreshed_at_ticks ewma_mass accumulated_relative salience_sum salience_weight last_query_mass"
                   " token_index mass newest_mass"),
        (c_int64, "count clock_ticks"), (c_float, "keep weight salience_floor"), (c_int32, "salience_neighbours"),
        (c_int64, "salience_min_age_tokens"), (c_float, "refresh_threshold"), (c_int32, "refresh"),
    )  # fmt: skip


class ScoreArgs(Record):
    """score_pages."""

    _fields_ = _fields(
        (c_void_p, "region flags refreshed_at_ticks attention salience_sum salience_weight base_priority decay pages"
                   " evictable out"),
        (c_int64, "page_count processed_tokens clock_ticks"),
        (c_int32, "regions page_size power_law attention_ranks salience_ranks"),
        (c_float, "superseded_factor attention_weight salience_weight_factor"),
    )  # fmt: skip


class FactsArgs(Record):
    """page_facts."""

    _fields_ = _fields(
        (c_void_p, "region flags pinned tie_rank pages page_region page_pinned page_superseded"),
        (c_int64, "page_count registered_tokens"), (c_int32, "regions page_size"),
    )  # fmt: skip


class SelectArgs(Record):
    """select_pages."""

    _fields_ = _fields((c_void_p, "scores evictable out"), (c_int64, "page_count count"))


class RankArgs(Record):
    """unit_ranks."""

    _fields_ = _fields((c_void_p, "values ranks"), (c_int64, "count"))


class SalienceArgs(Record):
    """local_salience."""

    _fields_ = _fields(
        (c_void_p, "relative_mass salience"), (c_int64, "count"), (c_float, "floor"), (c_int32, "neighbours")
    )


class CompactArgs(Record):
    """compact_block_table."""

    _fields_ = _fields(
        (c_void_p, "block_table"), (c_int64, "table_stride"), (c_void_p, "seq_lens out_table"), (c_int64, "out_stride"),
        (c_void_p, "kept_tokens kept_pages"), (c_int32, "rows columns page_size null_page"),
    )  # fmt: skip


class CopyArgs(Record):
    """copy_pages."""

    _fields_ = _fields(
        (c_void_p, "source target source_pages target_pages"),
        (c_int64, "count source_stride_bytes target_stride_bytes page_bytes"), (c_int32, "threads unused"),
    )  # fmt: skip
