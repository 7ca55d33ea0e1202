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
from functools import cached_property

import numpy as np

from memdecay_agents.arrays import BoolArray, FloatArray, IndexArray, RegionArray
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.ranks import ranks_within
from memdecay_agents.region_table import RegionTable
from memdecay_agents.spans import SpanFlag
from memdecay_agents.surprisal import IdStatistics, TokenCounts
from memdecay_agents.token_state import TokenState
from memdecay_kernels.implementations import native_library
from memdecay_kernels.native import host
from memdecay_kernels.terms import TokenColumns


@dataclass(frozen=True, eq=False)
class PageView:
    """The held pages of one session at one moment; read-only by agreement."""

    session_key: str
    page_size_tokens: int
    table: RegionTable
    page_index: IndexArray
    """int64 [P]: logical page numbers, ascending."""
    columns: TokenColumns[np.ndarray]
    """The session's own arrays, not copies: what is gathered from them is gathered on first use, which has to be
    before the session changes. A gathered array stays as it is."""
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
    counts: TokenCounts
    """The session's own, not a copy, as the columns."""

    # --- by token, gathered on first use ---------------------------------------------------------

    def gather(self, column: np.ndarray) -> np.ndarray:
        """A column's entries of the held pages, [P, page]."""
        return np.asarray(column.reshape(-1, self.page_size_tokens)[self.page_index])

    @cached_property
    def region(self) -> RegionArray:
        """int8 [P, page]: region index of each token."""
        return self.gather(self.columns.region)

    @cached_property
    def flags(self) -> RegionArray:
        """int8 [P, page]: ``SpanFlag`` bits."""
        return self.gather(self.columns.flags)

    @cached_property
    def age_ticks(self) -> IndexArray:
        """int64 [P, page]: ticks since the token was written or last refreshed."""
        ages = np.maximum(self.clock_ticks - self.gather(self.columns.refreshed_at_ticks), 0)
        return np.asarray(ages, dtype=np.int64)

    @cached_property
    def ewma_mass(self) -> FloatArray:
        """float32 [P, page]: moving average of the raw mass."""
        return self.gather(self.columns.ewma_mass)

    @cached_property
    def accumulated_relative(self) -> FloatArray:
        """float32 [P, page]: sum of relative mass over all queries."""
        return self.gather(self.columns.accumulated_relative)

    @cached_property
    def salience(self) -> FloatArray:
        """float32 [P, page]: mean local salience over the token's life; 0 where never measured."""
        weight = np.maximum(self.gather(self.columns.salience_weight), np.float32(1.0))
        return np.asarray(self.gather(self.columns.salience_sum) / weight, dtype=np.float32)

    @cached_property
    def last_query_mass(self) -> FloatArray:
        """float32 [P, page]: raw mass at the newest measurement."""
        return self.gather(self.columns.last_query_mass)

    @cached_property
    def key_norm(self) -> FloatArray:
        """float32 [P, page]: Euclidean norm of the token's key; 0 where never measured."""
        return self.gather(self.columns.key_norm)

    @cached_property
    def _id_statistics(self) -> IdStatistics:
        return self.counts.statistics(self.token_index)

    @cached_property
    def surprisal(self) -> FloatArray:
        """float32 [P, page], in nats: see `TokenCounts`; 0 where the token's id is not known."""
        return self._id_statistics.surprisal

    @cached_property
    def surprisal_rank(self) -> FloatArray:
        """float32 [P, page] in [0, 1]: rank of the surprisal among the tokens of evictable pages; 0 on others."""
        return ranks_within(self.surprisal, self.evictable)

    @cached_property
    def named_later(self) -> BoolArray:
        """bool [P, page]: the token belongs to a telling name that is named later; see `TokenCounts`."""
        return self._id_statistics.named_later

    @cached_property
    def valid(self) -> BoolArray:
        """bool [P, page]: the token is processed (the last page may be partial)."""
        known = min(self.processed_tokens, self.n_tokens)
        n_valid = _tokens_in(self.page_index, known, self.page_size_tokens)
        return np.asarray(np.arange(self.page_size_tokens) < n_valid[:, None], dtype=np.bool_)

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


TOKEN_ARRAYS = tuple(
    name for name, value in vars(PageView).items() if isinstance(value, cached_property) and not name.startswith("_")
)
"""Names of the view's arrays by token."""


def build_page_view(
    state: TokenState,
    held_pages: IndexArray | Sequence[int],
    processed_tokens: int,
    config: MemDecayConfig,
    *,
    session_key: str = "",
    newest_tokens: int | None = None,
) -> PageView:
    """Gather a session's held pages.

    Args:
        state: the session's tokens.
        held_pages: logical numbers of the pages that hold KV (or are about to).
        processed_tokens: tokens whose KV is computed; pages beyond are not candidates.
        config: page size, sinks, recent window, pins.
        session_key: for policies that draw numbers by session.
        newest_tokens: where the recent window ends, beyond what is processed; None: at ``processed_tokens``.
    """
    page = config.page_size_tokens
    pages = np.asarray(held_pages, dtype=np.int64)
    if pages.size > 1 and np.any(np.diff(pages) <= 0):
        pages = np.unique(pages)
    if pages.size:
        state.reserve((int(pages[-1]) + 1) * page)
    page_region, pinned, superseded = page_facts(state, pages)
    if not config.policy_pins:
        pinned = np.zeros(pages.size, dtype=np.bool_)
    ends = (pages + 1) * page
    newest = processed_tokens if newest_tokens is None else newest_tokens
    protected = (pages < config.sink_pages) | (ends > min(processed_tokens, newest - config.recent_tokens))
    return PageView(
        session_key=session_key,
        page_size_tokens=page,
        table=state.table,
        page_index=pages,
        columns=state.columns,
        pinned=pinned,
        protected=protected,
        evictable=~(pinned | protected),
        page_region=page_region,
        superseded=superseded,
        n_tokens=state.n_tokens,
        processed_tokens=processed_tokens,
        clock_ticks=state.clock_ticks,
        counts=state.counts,
    )


def page_facts(state: TokenState, pages: IndexArray) -> tuple[RegionArray, BoolArray, BoolArray]:
    """Of each page: the region of most of its tokens, whether one is pinned, whether most are superseded; [P] each."""
    page, table = state.config.page_size_tokens, state.table
    library = native_library()
    if library is not None:
        return host.page_facts(
            library, state.columns, state.paged("pinned"), table.tie_rank, pages, state.n_tokens, page
        )
    n_registered = _tokens_in(pages, state.n_tokens, page)
    n_superseded = np.count_nonzero(state.paged("flags")[pages] & np.int8(SpanFlag.SUPERSEDED), axis=1)
    return (
        _majority(state.paged("region")[pages], n_registered, table),
        np.asarray(np.any(state.paged("pinned")[pages], axis=1), dtype=np.bool_),
        np.asarray(n_superseded * 2 > n_registered, dtype=np.bool_),
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
