"""The native operations on numpy arrays: what the policies call; nothing here imports torch.

Arrays are C-contiguous and of the dtypes that `memdecay_kernels.terms` names; nothing is checked again here.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from memdecay_kernels.native.library import Library
from memdecay_kernels.native.records import (
    FactsArgs,
    ObserveArgs,
    RankArgs,
    SalienceArgs,
    ScoreArgs,
    SelectArgs,
)
from memdecay_kernels.terms import ObserveRule, ScoreTerms, TokenColumns

_REFRESH = {"never": 0, "raw_mass": 1, "relative_mass": 2}
Columns = TokenColumns[npt.NDArray[Any]]
Terms = ScoreTerms[npt.NDArray[np.float32]]


def pointer(array: npt.NDArray[Any]) -> int:
    """Address of an array's first element."""
    try:  # several times faster than the array's own interface
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # a read-only or an empty array
        address: int = array.__array_interface__["data"][0]
        return address


class HostColumns(TokenColumns[npt.NDArray[Any]]):
    """Columns that serve many calls: where they lie is looked up once."""

    @functools.cached_property
    def addresses(self) -> TokenColumns[int]:
        """Of the first elements."""
        return TokenColumns(*(pointer(column) for column in self))

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy's columns lie elsewhere."""
        return type(self), tuple(self)


def _addresses(columns: Columns) -> TokenColumns[int]:
    return columns.addresses if isinstance(columns, HostColumns) else HostColumns(*columns).addresses


def observe_tokens(
    library: Library,
    columns: Columns,
    token_index: npt.NDArray[np.int64],
    mass: npt.NDArray[np.float32],
    newest_mass: npt.NDArray[np.float32] | None,
    rule: ObserveRule,
    represented_queries: int,
    clock_ticks: int,
) -> None:
    """See `memdecay_kernels.observe_tokens`."""
    at = _addresses(columns)
    library.call(
        "observe",
        ObserveArgs(
            refreshed_at_ticks=at.refreshed_at_ticks,
            ewma_mass=at.ewma_mass,
            accumulated_relative=at.accumulated_relative,
            salience_sum=at.salience_sum,
            salience_weight=at.salience_weight,
            last_query_mass=at.last_query_mass,
            token_index=pointer(token_index),
            mass=pointer(mass),
            newest_mass=0 if newest_mass is None else pointer(newest_mass),
            count=token_index.shape[0],
            clock_ticks=clock_ticks,
            keep=(1.0 - rule.ewma_factor) ** represented_queries,
            weight=represented_queries,
            salience_floor=rule.salience_floor_relative,
            salience_neighbours=rule.salience_neighbours,
            salience_min_age_tokens=rule.salience_min_age_tokens,
            refresh_threshold=rule.refresh_threshold,
            refresh=_REFRESH[rule.refresh],
        ),
    )


def score_pages(
    library: Library,
    columns: Columns,
    pages: npt.NDArray[np.int64],
    evictable: npt.NDArray[np.bool_],
    terms: Terms,
    page_size_tokens: int,
    processed_tokens: int,
    clock_ticks: int,
    out: npt.NDArray[np.float32],
) -> None:
    """See `memdecay_kernels.score_pages`."""
    at = _addresses(columns)
    power_law = terms.decay_form == "power_law"
    library.call(
        "score",
        ScoreArgs.in_order(
            at.region, at.flags, at.refreshed_at_ticks, getattr(at, terms.attention_column), at.salience_sum,
            at.salience_weight, pointer(terms.base_priority),
            pointer(terms.half_life_ticks if power_law else terms.decay_rate_per_tick),
            pointer(pages), pointer(evictable), pointer(out),
            pages.shape[0], processed_tokens, clock_ticks,
            terms.base_priority.shape[0], page_size_tokens, power_law,
            terms.attention_form == "rank", terms.salience_form == "rank",
            terms.superseded_factor, terms.attention_weight, terms.salience_weight,
        ),
    )  # fmt: skip


def page_facts(
    library: Library,
    columns: Columns,
    pinned: npt.NDArray[np.bool_],
    tie_rank: npt.NDArray[np.int64],
    pages: npt.NDArray[np.int64],
    registered_tokens: int,
    page_size_tokens: int,
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Region of most of each page's tokens (int8), whether one is pinned, and whether most are superseded (bool).

    On a tie the region of the higher ``tie_rank`` (int64 ``[regions]``) wins. Counted are registered tokens.
    """
    at, count = _addresses(columns), pages.shape[0]
    page_region = np.empty(count, dtype=np.int8)
    page_pinned, page_superseded = np.empty(count, dtype=np.bool_), np.empty(count, dtype=np.bool_)
    library.call(
        "facts",
        FactsArgs(
            region=at.region,
            flags=at.flags,
            pinned=pointer(pinned),
            tie_rank=pointer(tie_rank),
            pages=pointer(pages),
            page_region=pointer(page_region),
            page_pinned=pointer(page_pinned),
            page_superseded=pointer(page_superseded),
            page_count=count,
            registered_tokens=registered_tokens,
            regions=tie_rank.shape[0],
            page_size=page_size_tokens,
        ),
    )
    return page_region, page_pinned, page_superseded


def select_pages(
    library: Library, scores: npt.NDArray[np.float32], evictable: npt.NDArray[np.bool_], out: npt.NDArray[np.int64]
) -> None:
    """See `memdecay_kernels.select_pages`."""
    library.call(
        "select",
        SelectArgs(
            scores=pointer(scores),
            evictable=pointer(evictable),
            out=pointer(out),
            page_count=scores.shape[0],
            count=out.shape[0],
        ),
    )


def unit_ranks(library: Library, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Ranks in [0, 1], equal values sharing their mean rank; float32 ``[n]``; one value: 0.5."""
    ranks = np.empty_like(values)
    library.call("ranks", RankArgs(values=pointer(values), ranks=pointer(ranks), count=values.shape[0]))
    return ranks


def local_salience(
    library: Library, relative_mass: npt.NDArray[np.float32], neighbours: int, floor: float
) -> npt.NDArray[np.float32]:
    """log of each floored relative mass over the mean of itself and its neighbours; float32 ``[n]``."""
    salience = np.empty_like(relative_mass)
    library.call(
        "salience",
        SalienceArgs(
            relative_mass=pointer(relative_mass),
            salience=pointer(salience),
            count=relative_mass.shape[0],
            floor=floor,
            neighbours=neighbours,
        ),
    )
    return salience
