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
from memdecay_agents.spans import Span, SpanFlag

Offsets = NDArray[np.int64]
"""[n, 2] int64: first character of each token and the one after its last."""


class Tokenised(NamedTuple):
    """Token ids of a text, the spans that partition them, and whether the tokens' characters are known."""

    token_ids: list[int]
    spans: list[Span]
    exact: bool
    """False: the tokenizer has no offsets (it is no fast one) and borders are off by a few tokens."""


def tokenise(
    tokenizer: Any, text: str, stretches: Sequence[Stretch], config: MemDecayConfig, kept: Sequence[Kept] = ()
) -> Tokenised:
    """Tokenise once, as ``apply_chat_template`` does, and give each token the label of its characters.

    A token that straddles labels goes to the more protected one: pinned first, then higher base priority.

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
    labels = _token_labels(offsets, stretches, config)
    return Tokenised(token_ids, _spans(labels, stretches), bool(getattr(tokenizer, "is_fast", False)))


def protection(label: Label, config: MemDecayConfig) -> tuple[bool, float]:
    """How strongly a label's tokens are protected; compare with ``<``."""
    profile = config.regions[label.region]
    return bool(label.flags & SpanFlag.PINNED) or profile.pinned, profile.base_priority


def _token_labels(offsets: Offsets, stretches: Sequence[Stretch], config: MemDecayConfig) -> NDArray[np.int64]:
    """Index of the stretch that each token goes to, int64 [n]."""
    if not len(offsets) or not stretches:
        return np.zeros(len(offsets), dtype=np.int64)
    borders = np.asarray([stretch.start for stretch in stretches], dtype=np.int64)
    reached = np.concatenate(([0], np.maximum.accumulate(offsets[:, 1])[:-1]))
    starts = np.minimum(offsets[:, 0], reached)  # offsets may leave out a leading space: it is this token's
    starts = np.where(offsets[:, 0] < offsets[:, 1], starts, reached)
    ends = np.maximum(offsets[:, 1] - 1, starts)
    first = np.searchsorted(borders, starts, side="right") - 1
    last = np.searchsorted(borders, ends, side="right") - 1
    for token in np.flatnonzero(first != last):
        reachable = range(int(first[token]), int(last[token]) + 1)
        first[token] = max(reachable, key=lambda i: protection(stretches[i].label, config))
    return np.asarray(first, dtype=np.int64)


def _spans(labels: NDArray[np.int64], stretches: Sequence[Stretch]) -> list[Span]:
    if not len(labels):
        return []
    cuts = [0, *(np.flatnonzero(np.diff(labels)) + 1).tolist(), len(labels)]
    spans: list[Span] = []
    for start, end in pairwise(cuts):
        label = stretches[int(labels[start])].label
        last = spans[-1] if spans else None
        if last is not None and (last.region, last.flags) == label:
            spans[-1] = last._replace(end=end)
        else:
            spans.append(Span(start, end, label.region, label.flags))
    return spans


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
