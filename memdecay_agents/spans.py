"""Token spans: half-open ranges of absolute token indices that cut a prompt into regions without a gap.

tokens   0 ........ 40 ......... 95 ..... 120
         [ system  )[ retrieval )[ user  )         base = 0, n_tokens = 120
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import IntFlag
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memdecay_agents.arrays import RegionArray
from memdecay_agents.errors import SpanError

if TYPE_CHECKING:
    from memdecay_agents.config import MemDecayConfig


class SpanFlag(IntFlag):
    """What a span says beyond its region."""

    NONE = 0
    PINNED = 1
    """Never evict these tokens, whatever their region."""
    SUPERSEDED = 2
    """Something newer replaces these tokens: their base priority is demoted and they lose their quota. A pin
    holds all the same."""


class Span(NamedTuple):
    """Tokens [start, end) belong to ``region``; indices are absolute in the session."""

    start: int
    end: int
    region: str
    flags: SpanFlag = SpanFlag.NONE

    def __str__(self) -> str:
        return f"span [{self.start}, {self.end}) '{self.region}'"


def check_partition(spans: Sequence[Span], base: int, n_tokens: int, known_regions: Collection[str]) -> None:
    """Check that spans cover the tokens [base, n_tokens) exactly, in order.

    Raises:
        SpanError: an empty span, an overlap, a gap, a span that begins before ``base`` or ends beyond
            ``n_tokens``, or an unknown region; the message names the spans.
    """
    expected = base
    previous = f"base {base}"
    for span in spans:
        if span.region not in known_regions:
            raise SpanError(
                where=str(span),
                rule=f"unknown region {span.region!r}; known are {', '.join(known_regions)}",
                remedy="Use a known region, or add this one to MemDecayConfig(regions=...).",
            )
        if span.end <= span.start:
            raise SpanError(where=str(span), rule="the span is empty", remedy="Leave empty spans out.")
        if span.start < expected:
            rule = f"it overlaps {previous}: tokens [{span.start}, {min(expected, span.end)}) have two owners"
            raise SpanError(where=str(span), rule=rule, remedy="Give each token exactly one span, in order.")
        if span.start > expected:
            rule = f"tokens [{expected}, {span.start}) between {previous} and it have no region"
            raise SpanError(where=str(span), rule=rule, remedy="Give each token exactly one span, in order.")
        if span.end > n_tokens:
            rule = f"it ends beyond the prompt of {n_tokens} tokens"
            raise SpanError(where=str(span), rule=rule, remedy="Make spans from the ids that are sent.")
        expected, previous = span.end, str(span)
    if expected != n_tokens:
        raise SpanError(
            where=f"spans of [{base}, {n_tokens})",
            rule=f"tokens [{expected}, {n_tokens}) after {previous} have no region",
            remedy="Give each token exactly one span, in order.",
        )


def merge_adjacent(spans: Iterable[Span]) -> list[Span]:
    """The same spans with neighbours of equal region and flags joined; the order stays."""
    merged: list[Span] = []
    for span in spans:
        last = merged[-1] if merged else None
        if last is not None and (last.end, last.region, last.flags) == (span.start, span.region, span.flags):
            merged[-1] = last._replace(end=span.end)
        else:
            merged.append(span)
    return merged


def coarsen(spans: Sequence[Span], config: MemDecayConfig, most: int) -> list[Span]:
    """Cut a partition into at most ``most`` spans, page by page, where it has more.

    A page, or twice as many pages until they are few enough, takes the region of its most protected span and
    every pin in it; it counts as superseded only if all of it is. Nothing loses its protection.

    Args:
        spans: a partition.
        config: knows pages, pinned regions and priorities.
        most: at least 1.
    """
    merged = merge_adjacent(spans)
    step = config.page_size_tokens
    while len(merged) > most:
        base, end = merged[0].start, merged[-1].end
        pieces = []
        for start in range(base - base % step, end, step):
            inside = clip(merged, start, start + step)
            profile = max((config.regions[span.region] for span in inside), key=lambda p: (p.pinned, p.base_priority))
            region = next(span.region for span in inside if config.regions[span.region] is profile)
            pinned = any(span.flags & SpanFlag.PINNED for span in inside)
            superseded = all(span.flags & SpanFlag.SUPERSEDED for span in inside)
            flags = (SpanFlag.PINNED if pinned else SpanFlag.NONE) | (
                SpanFlag.SUPERSEDED if superseded else SpanFlag.NONE
            )
            pieces.append(Span(inside[0].start, inside[-1].end, region, flags))
        merged, step = merge_adjacent(pieces), step * 2
    return merged


def clip(spans: Iterable[Span], start: int, end: int) -> list[Span]:
    """The parts of spans inside [start, end), in order; what is outside is cut away."""
    inside = ((max(span.start, start), min(span.end, end), span) for span in spans)
    return [span._replace(start=a, end=b) for a, b, span in inside if a < b]


def regions_of_tokens(spans: Sequence[Span], base: int, n: int, config: MemDecayConfig) -> RegionArray:
    """Region index of each of the ``n`` tokens from ``base`` on, int8 [n]; the spans must partition them.

    Raises:
        SpanError: the spans do not partition [base, base + n).
    """
    check_partition(spans, base, base + n, config.region_names)
    index = {name: position for position, name in enumerate(config.region_names)}
    values = np.asarray([index[span.region] for span in spans], dtype=np.int8)
    return np.repeat(values, [span.end - span.start for span in spans])


def flags_of_tokens(spans: Sequence[Span]) -> RegionArray:
    """Flags of each token that the spans cover, int8 [sum of lengths], in order."""
    values = np.asarray([int(span.flags) for span in spans], dtype=np.int8)
    return np.repeat(values, [span.end - span.start for span in spans])
