"""A session's held pages with everything that a policy may look at, as arrays.

P held pages of ``page`` tokens each. A page is a candidate only if it is full and processed, not pinned, and
not protected:

    page       0        1        2        3        4        5
               sink     .        pinned   .        recent   being written
    evictable           yes               yes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memdecay_agents.arrays import BoolArray, FloatArray, IndexArray, RegionArray
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.region_table import RegionTable
from memdecay_agents.spans import SpanFlag
from memdecay_agents.token_state import TokenState


@dataclass(frozen=True, eq=False)
class PageView:
    """The held pages of one session at one moment; read-only by agreement."""

    session_key: str
    page_size_tokens: int
    table: RegionTable
    page_index: IndexArray
    """int64 [P]: logical page numbers, ascending."""
    region: RegionArray
    """int8 [P, page]: region index of each token."""
    flags: RegionArray
    """int8 [P, page]: ``SpanFlag`` bits."""
    age_ticks: IndexArray
    """int64 [P, page]: ticks since the token was written or last refreshed."""
    ewma_mass: FloatArray
    """float32 [P, page]: moving average of the raw mass."""
    accumulated_relative: FloatArray
    """float32 [P, page]: sum of relative mass over all queries."""
    salience: FloatArray
    """float32 [P, page]: mean local salience over the token's life; 0 where never measured."""
    last_query_mass: FloatArray
    """float32 [P, page]: raw mass at the newest measurement."""
    key_norm: FloatArray
    """float32 [P, page]: Euclidean norm of the token's key; 0 where never measured."""
    valid: BoolArray
    """bool [P, page]: the token is processed (the last page may be partial)."""
    pinned: BoolArray
    """bool [P]: holds a pinned token (all False where the configuration ignores pins)."""
    protected: BoolArray
    """bool [P]: sink, recent, not full, or not processed."""
    evictable: BoolArray
    """bool [P]: neither pinned nor protected."""
    page_region: RegionArray
    """int8 [P]: region of most of the page's tokens; on a tie the one of higher base priority."""
    superseded: BoolArray
    """bool [P]: most of the page's tokens are superseded."""
    n_tokens: int
    """Registered tokens of the session."""
    processed_tokens: int
    """Tokens whose KV is computed."""
    clock_ticks: int

    @property
    def n_pages(self) -> int:
        """P."""
        return int(self.page_index.shape[0])

    @property
    def token_index(self) -> IndexArray:
        """int64 [P, page]: logical index of each token."""
        return self.page_index[:, None] * self.page_size_tokens + np.arange(self.page_size_tokens)

    def page_mean(self, values: FloatArray) -> FloatArray:
        """Mean over each page's processed tokens, float32 [P] from float32 [P, page]; 0 for an empty page."""
        count = _tokens_in(self.page_index, min(self.processed_tokens, self.n_tokens), self.page_size_tokens)
        if count.size and int(count.min()) < self.page_size_tokens:
            values = np.where(self.valid, values, np.float32(0.0))
        total = np.einsum("pt->p", values)  # as a plain sum, several times faster on short rows
        return np.asarray(total / np.maximum(count, 1).astype(np.float32), dtype=np.float32)


def build_page_view(
    state: TokenState,
    held_pages: IndexArray | Sequence[int],
    processed_tokens: int,
    config: MemDecayConfig,
    *,
    session_key: str = "",
) -> PageView:
    """Gather a session's held pages.

    Args:
        state: the session's tokens.
        held_pages: logical numbers of the pages that hold KV (or are about to).
        processed_tokens: tokens whose KV is computed; pages beyond are not candidates.
        config: page size, sinks, recent window, pins.
        session_key: for policies that draw numbers by session.
    """
    page = config.page_size_tokens
    pages = np.asarray(held_pages, dtype=np.int64)
    if pages.size > 1 and np.any(np.diff(pages) <= 0):
        pages = np.unique(pages)
    if pages.size:
        state.reserve((int(pages[-1]) + 1) * page)
    known = min(processed_tokens, state.n_tokens)
    n_registered = _tokens_in(pages, state.n_tokens, page)
    region = state.paged("region")[pages]
    flags = state.paged("flags")[pages]
    superseded: BoolArray = np.zeros(pages.size, dtype=np.bool_)
    if flags.any():
        n_superseded = np.count_nonzero(flags & np.int8(SpanFlag.SUPERSEDED), axis=1)
        superseded = np.asarray(n_superseded * 2 > n_registered, dtype=np.bool_)
    pinned: BoolArray = np.zeros(pages.size, dtype=np.bool_)
    if config.policy_pins:
        np.any(state.paged("pinned")[pages], axis=1, out=pinned)
    ends = (pages + 1) * page
    protected = (pages < config.sink_pages) | (ends > processed_tokens - config.recent_tokens)
    weight = np.maximum(state.paged("salience_weight")[pages], np.float32(1.0))
    return PageView(
        session_key=session_key,
        page_size_tokens=page,
        table=state.table,
        page_index=pages,
        region=region,
        flags=flags,
        age_ticks=np.maximum(state.clock_ticks - state.paged("refreshed_at_ticks")[pages], 0),
        ewma_mass=state.paged("ewma_mass")[pages],
        accumulated_relative=state.paged("accumulated_relative")[pages],
        salience=state.paged("salience_sum")[pages] / weight,
        last_query_mass=state.paged("last_query_mass")[pages],
        key_norm=state.paged("key_norm")[pages],
        valid=np.arange(page) < _tokens_in(pages, known, page)[:, None],
        pinned=pinned,
        protected=protected,
        evictable=~(pinned | protected),
        page_region=_majority(region, n_registered, state.table),
        superseded=superseded,
        n_tokens=state.n_tokens,
        processed_tokens=processed_tokens,
        clock_ticks=state.clock_ticks,
    )


def region_counts(region: RegionArray, n_counted: IndexArray, n_regions: int) -> IndexArray:
    """Tokens of each page by region, int64 [P, R]: the first ``n_counted`` (int64 [P]) of int8 [P, page]."""
    n_pages, page = region.shape
    slot = np.arange(n_pages, dtype=np.int64)[:, None] * n_regions + region
    if n_pages and int(n_counted.min()) < page:
        slot = slot[np.arange(page) < n_counted[:, None]]
    return np.bincount(slot.ravel(), minlength=n_pages * n_regions).reshape(n_pages, n_regions)


def _tokens_in(pages: IndexArray, n_tokens: int, page_size_tokens: int) -> IndexArray:
    """How many of the first ``n_tokens`` tokens lie in each page, int64 [P]."""
    return np.clip(n_tokens - pages * page_size_tokens, 0, page_size_tokens)


def _majority(region: RegionArray, n_counted: IndexArray, table: RegionTable) -> RegionArray:
    n_regions = len(table.names)
    counts = region_counts(region, n_counted, n_regions)
    return np.asarray(np.argmax(counts * n_regions + table.tie_rank, axis=1), dtype=np.int8)
