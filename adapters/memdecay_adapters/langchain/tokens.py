"""One tokenisation, and the region of every token."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memdecay_adapters.langchain.kept_ids import Kept, encode_around
from memdecay_adapters.langchain.regions import Label
from memdecay_adapters.langchain.templates.resolve import Stretch
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.spans import Span, SpanFlag, merge_adjacent

Offsets = NDArray[np.int64]
"""[n, 2] int64: first character of each token and the one after its last."""
Starts = NDArray[np.int64]
"""[n] int64: first character of each token."""


class Tokenised(NamedTuple):
    """Token ids of a text, the spans that partition them, and whether the tokens' characters are known."""

    token_ids: list[int]
    spans: list[Span]
    exact: bool
    """False: the tokenizer has no offsets (it is no fast one) and borders are off by a few tokens."""
    starts: Starts
    """int64 [n]: the character that each token begins with."""


class _TokenLabels(NamedTuple):
    """Where each token of a text gets its label from."""

    within: NDArray[np.int64]
    """Index of the stretch that each token begins in, int64 [n]."""
    joint: dict[int, Label]
    """Labels of the tokens that straddle stretches, by their places."""


def tokenise(
    tokenizer: Any, text: str, stretches: Sequence[Stretch], config: MemDecayConfig, kept: Sequence[Kept] = ()
) -> Tokenised:
    """Tokenise once, as ``apply_chat_template`` does, and give each token the label of its characters.

    A token that straddles stretches goes to the more protected region of them, with every pin in them; it counts
    as superseded only if all of them are. So its region never depends on flags, which later messages may set.

    Args:
        tokenizer: a transformers tokenizer.
        text: the rendered prompt.
        stretches: the labelled text, without gaps.
        config: says which label is more protected.
        kept: answers whose ids stay what they are.
    """
    if getattr(tokenizer, "is_fast", False):
        token_ids, offsets = encode_around(tokenizer, text, kept)
    else:
        token_ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        offsets = _searched_offsets(tokenizer, text, token_ids)
    spans = _spans(_token_labels(offsets, stretches, config), stretches)
    return Tokenised(token_ids, spans, bool(getattr(tokenizer, "is_fast", False)), offsets[:, 0])


def joint_label(labels: Sequence[Label], config: MemDecayConfig) -> Label:
    """The label of a token that straddles stretches with these labels, in their order."""
    profiles = config.regions
    region = max(
        (label.region for label in labels), key=lambda name: (profiles[name].pinned, profiles[name].base_priority)
    )
    pins = SpanFlag.PINNED if any(label.flags & SpanFlag.PINNED for label in labels) else SpanFlag.NONE
    superseded = all(label.flags & SpanFlag.SUPERSEDED for label in labels)
    return Label(region, pins | (SpanFlag.SUPERSEDED if superseded else SpanFlag.NONE))


def _token_labels(offsets: Offsets, stretches: Sequence[Stretch], config: MemDecayConfig) -> _TokenLabels:
    if not len(offsets) or not stretches:
        return _TokenLabels(np.zeros(len(offsets), dtype=np.int64), {})
    borders = np.asarray([stretch.start for stretch in stretches], dtype=np.int64)
    reached = np.concatenate(([0], np.maximum.accumulate(offsets[:, 1])[:-1]))
    starts = np.minimum(offsets[:, 0], reached)  # offsets may leave out a leading space: it is this token's
    starts = np.where(offsets[:, 0] < offsets[:, 1], starts, reached)
    ends = np.maximum(offsets[:, 1] - 1, starts)
    first = np.searchsorted(borders, starts, side="right") - 1
    last = np.searchsorted(borders, ends, side="right") - 1
    joint = {
        int(token): joint_label([s.label for s in stretches[int(first[token]) : int(last[token]) + 1]], config)
        for token in np.flatnonzero(first != last)
    }
    return _TokenLabels(np.asarray(first, dtype=np.int64), joint)


def _spans(labels: _TokenLabels, stretches: Sequence[Stretch]) -> list[Span]:
    within, joint = labels
    if not len(within):
        return []
    edges = (np.flatnonzero(np.diff(within)) + 1).tolist()
    cuts = sorted({0, len(within), *edges, *joint, *(token + 1 for token in joint)})
    spans = []
    for start, end in pairwise(cuts):
        label = joint.get(start) or stretches[int(within[start])].label
        spans.append(Span(start, end, label.region, label.flags))
    return merge_adjacent(spans)


def _searched_offsets(tokenizer: Any, text: str, token_ids: Sequence[int]) -> Offsets:
    """Offsets by looking for each token's text, in order; what is not found has no width."""
    offsets, position = [], 0
    for token_id in token_ids:
        piece = str(tokenizer.decode([token_id], skip_special_tokens=False))
        start = text.find(piece, position, position + len(piece) + 8) if piece else -1
        end = start + len(piece) if start >= 0 else position
        offsets.append((max(start, position), end))
        position = end
    return np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
