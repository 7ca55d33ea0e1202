"""How surprising each token is in what its session has read: from token ids alone, whatever the model attends to.

    p1(t) = (c(t) + 100 z(t)) / (n + 100)        z(t) = 1 / (7 (id + 50)): ids of a BPE vocabulary fall with frequency
    p(t)  = (c(s t) + p1(t)) / (c(s) + 1)         s: the token before t
    surprisal = -ln p(t), in nats

The counts c are over all n tokens whose ids are known, later ones too, without the one that is asked about. So a phrase
that comes again and again says little wherever it stands, and a name that stands once says a lot. Ours; the smoothing
is that of interpolated n-gram models. Where ids do not fall with frequency, z misleads only on words that came seldom.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from memdecay_agents.arrays import FloatArray, IndexArray
from memdecay_agents.errors import ObservationError

PRIOR_TOKENS = 100.0
"""What the vocabulary's prior weighs against the session's own words, in tokens."""
RANK_OFFSET = 50.0
"""Added to an id before it counts as a frequency rank: the first ids are single bytes and special tokens."""
PRIOR_NORM = 7.0
"""About the sum of 1 / (id + 50) over a vocabulary of 50,000 (6.9) to 150,000 (8.0)."""
_NO_TOKEN = -1
"""What stands before the first token."""
_SLACK = 4096
"""Pairs remembered beyond twice the tokens before those of dropped tokens are forgotten."""


class TokenCounts:
    """The words and pairs of words of one session, in the order of its tokens; 100 to 270 bytes a token."""

    def __init__(self) -> None:
        """Begin with no token."""
        self.n_known = 0
        self._ids = np.zeros(0, dtype=np.int64)
        self._forget()

    def _forget(self) -> None:
        self._words: dict[int, int] = {}
        self._pairs: dict[tuple[int, int], int] = {}
        self._word = np.zeros(self._ids.shape[0], dtype=np.int64)
        self._pair = np.zeros(self._ids.shape[0], dtype=np.int64)
        self._word_count = np.zeros(0, dtype=np.int64)
        self._pair_count = np.zeros(0, dtype=np.int64)
        self.n_known = 0

    @property
    def ids(self) -> IndexArray:
        """int64 [n_known]: the token ids."""
        return self._ids[: self.n_known]

    def learn(self, token_ids: Sequence[int] | IndexArray) -> None:
        """Take in the ids of the next tokens.

        Raises:
            ObservationError: an id below 0; nothing changed.
        """
        new = np.asarray(token_ids, dtype=np.int64)
        if not new.size:
            return
        if int(new.min()) < 0:
            raise ObservationError(
                where="token ids", rule=f"{int(new.min())} is no token id", remedy="Report ids of the vocabulary."
            )
        start, end = self.n_known, self.n_known + new.size
        self._ids, self._word, self._pair = (_with_room(a, end) for a in (self._ids, self._word, self._pair))
        self._ids[start:end] = new
        listed: list[int] = new.tolist()
        before = [int(self._ids[start - 1]) if start else _NO_TOKEN, *listed[:-1]]
        words, pairs = self._words, self._pairs
        self._word[start:end] = [words.setdefault(word, len(words)) for word in listed]
        self._pair[start:end] = [pairs.setdefault(pair, len(pairs)) for pair in zip(before, listed, strict=True)]
        self._word_count = _with_room(self._word_count, len(words))
        self._pair_count = _with_room(self._pair_count, len(pairs))
        np.add.at(self._word_count, self._word[start:end], 1)
        np.add.at(self._pair_count, self._pair[start:end], 1)
        self.n_known = end

    def truncate(self, n_tokens: int) -> None:
        """Keep the first ``n_tokens`` tokens, or as many as are known."""
        start, end = n_tokens, self.n_known
        if start >= end:
            return
        np.subtract.at(self._word_count, self._word[start:end], 1)
        np.subtract.at(self._pair_count, self._pair[start:end], 1)
        self.n_known = start
        if len(self._pairs) > 2 * start + _SLACK:
            kept = self.ids.copy()
            self._forget()
            self.learn(kept)

    def surprisal(self, token_index: IndexArray) -> FloatArray:
        """Surprisal of some tokens in nats, of the shape of ``token_index`` (int64); 0 where the id is not known."""
        known = token_index < self.n_known
        if not known.any():
            return np.zeros(token_index.shape, dtype=np.float32)
        index = np.where(known, token_index, 0)
        word = self._word[index]
        alone = self._word_count[word] - 1 + PRIOR_TOKENS / (PRIOR_NORM * (self._ids[index] + RANK_OFFSET))
        alone /= self.n_known + PRIOR_TOKENS
        before = np.where(index > 0, self._word_count[self._word[index - 1]] - 1, 0)
        chance = (self._pair_count[self._pair[index]] - 1 + alone) / (before + 1)
        return np.where(known, -np.log(chance), 0.0).astype(np.float32)


def _with_room(values: IndexArray, n: int) -> IndexArray:
    """The same values with room for n, doubled where it has to grow."""
    if n <= values.shape[0]:
        return values
    return np.concatenate([values, np.zeros(max(n, 2 * values.shape[0], 64) - values.shape[0], dtype=np.int64)])
