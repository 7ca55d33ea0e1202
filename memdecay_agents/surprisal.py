"""How surprising each token is in what its session has read: from token ids alone, whatever the model attends to.

    p1(t) = (c(t) + 100 z(t)) / (n + 100)        z(t) = 1 / (7 (id + 50)): ids of a BPE vocabulary fall with frequency
    p(t)  = (c(s t) + p1(t)) / (c(s) + 1)         s: the token before t
    surprisal = -ln p(t), in nats

The counts c are over all n tokens whose ids are known, later ones too, without the one that is asked about. So a phrase
that comes again and again says little wherever it stands, and a name that stands once says a lot. Ours; the smoothing
is that of interpolated n-gram models. Where ids do not fall with frequency, z misleads only on words that came seldom.

A name that is named later says no less for that, where it stood first, but NAMED_LATER_NATS more: its later places are
not counted. A name is the longest piece that comes again, LATER_TOKENS behind or more and MOST_NAMINGS times in all at
most, later always in a region that refers (``RegionProfile.refers``: what people and agents say, not what they read).
It has up to SHORT_NAME_TOKENS tokens, or up to NAME_TOKENS of which most stand nowhere else: a longer piece is a form
of speech, as what a chat template writes between messages is. Of its tokens those count that stand nowhere else, and
what follows them in it. A long number is none where each digit is a token, since digits stand elsewhere too.

A name with RARE_TOKENS rare words or more is telling: "strap colour" is one, "then the" and "two of" are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from memdecay_agents.arrays import BoolArray, FloatArray, IndexArray
from memdecay_agents.errors import ObservationError

PRIOR_TOKENS = 100.0
"""What the vocabulary's prior weighs against the session's own words, in tokens."""
RANK_OFFSET = 50.0
"""Added to an id before it counts as a frequency rank: the first ids are single bytes and special tokens."""
PRIOR_NORM = 7.0
"""About the sum of 1 / (id + 50) over a vocabulary of 50,000 (6.9) to 150,000 (8.0)."""
LATER_TOKENS = 64
"""A name is named later where it comes again so far behind, not in the same breath."""
SHORT_NAME_TOKENS = 4
"""A piece that comes again and is no longer than this is a name; a longer one only if most of it is its own."""
NAME_TOKENS = 10
"""Longest name, in tokens."""
OWN_SHARE = 2 / 3
"""Of a longer name, its own tokens: those that stand nowhere else."""
MOST_NAMINGS = 4
"""Places of a name at most, the first among them."""
NAMED_LATER_NATS = 2.0
"""What a name says more for being named later."""
RARE_ID = 2000
"""Ids from here on are those of rare words, where ids fall with frequency."""
RARE_TOKENS = 2
"""Rare words of a telling name, at least."""
_NO_TOKEN = -1
"""What stands before the first token."""
_NOWHERE = np.iinfo(np.int64).max
"""Where a pair that does not stand anywhere stands first."""
_SLACK = 4096
"""Pairs remembered beyond twice the tokens before those of dropped tokens are forgotten."""

_Places: TypeAlias = tuple[IndexArray, ...]
"""Places in an array, one index array an axis, as `numpy.nonzero` gives them."""


class IdStatistics(NamedTuple):
    """What token ids say of some tokens."""

    surprisal: FloatArray
    """float32, in nats; 0 where the id is not known."""
    named_later: BoolArray
    """bool, alike: the token belongs to a telling name that is named later."""


class _Named(NamedTuple):
    """Tokens of names that are named later, F of them."""

    places: _Places
    """Where they are among the tokens that were asked about."""
    later: IndexArray
    """int64 [F]: how often the name is named later."""
    ends_pair: BoolArray
    """bool [F]: the word before belongs to the name as well."""
    telling: BoolArray
    """bool [F]: so does a second rare word, or a third."""


class TokenCounts:
    """The words and pairs of words of one session, in the order of its tokens; 130 to 330 bytes a token."""

    def __init__(self) -> None:
        """Begin with no token."""
        self.n_known = 0
        self._ids = np.zeros(0, dtype=np.int64)
        self._refers = np.zeros(0, dtype=np.int64)
        self._forget()

    def _forget(self) -> None:
        self._words: dict[int, int] = {}
        self._pairs: dict[tuple[int, int], int] = {}
        self._word = np.zeros(self._ids.shape[0], dtype=np.int64)
        self._pair = np.zeros(self._ids.shape[0], dtype=np.int64)
        self._word_count = np.zeros(0, dtype=np.int64)
        self._pair_count = np.zeros(0, dtype=np.int64)
        self._pair_first = np.zeros(0, dtype=np.int64)
        self._pair_second = np.zeros(0, dtype=np.int64)
        self._pair_read = np.zeros(0, dtype=np.int64)
        self.n_known = 0

    @property
    def ids(self) -> IndexArray:
        """int64 [n_known]: the token ids."""
        return self._ids[: self.n_known]

    def learn(self, token_ids: Sequence[int] | IndexArray, refers: BoolArray | None = None) -> None:
        """Take in the ids of the next tokens.

        Args:
            token_ids: theirs.
            refers: bool, as many: whether their region's words may name what stood before; None: all.

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
        self._ids, self._word, self._pair, self._refers = (
            _with_room(a, end) for a in (self._ids, self._word, self._pair, self._refers)
        )
        self._ids[start:end] = new
        self._refers[start:end] = 1 if refers is None else refers
        listed: list[int] = new.tolist()
        before = [int(self._ids[start - 1]) if start else _NO_TOKEN, *listed[:-1]]
        words, pairs = self._words, self._pairs
        self._word[start:end] = [words.setdefault(word, len(words)) for word in listed]
        self._pair[start:end] = [pairs.setdefault(pair, len(pairs)) for pair in zip(before, listed, strict=True)]
        self._word_count = _with_room(self._word_count, len(words))
        self._pair_count, self._pair_read = (_with_room(a, len(pairs)) for a in (self._pair_count, self._pair_read))
        self._pair_first, self._pair_second = (
            _with_room(a, len(pairs), _NOWHERE) for a in (self._pair_first, self._pair_second)
        )
        np.add.at(self._word_count, self._word[start:end], 1)
        np.add.at(self._pair_count, self._pair[start:end], 1)
        np.add.at(self._pair_read, self._pair[start:end], 1 - self._refers[start:end])
        for place, pair in enumerate(self._pair[start:end].tolist(), start):
            if self._pair_first[pair] == _NOWHERE:
                self._pair_first[pair] = place
            elif self._pair_second[pair] == _NOWHERE:
                self._pair_second[pair] = place
        self.n_known = end

    def relabel(self, refers: BoolArray) -> None:
        """The leading tokens are of other regions now; ``refers`` as for `learn`."""
        n = min(refers.shape[0], self.n_known)
        change = refers[:n] - self._refers[:n]
        if change.any():
            np.subtract.at(self._pair_read, self._pair[:n], change)
            self._refers[:n] = refers[:n]

    def truncate(self, n_tokens: int) -> None:
        """Keep the first ``n_tokens`` tokens, or as many as are known."""
        start, end = n_tokens, self.n_known
        if start >= end:
            return
        np.subtract.at(self._word_count, self._word[start:end], 1)
        dropped = self._pair[start:end]
        np.subtract.at(self._pair_count, dropped, 1)
        np.subtract.at(self._pair_read, dropped, 1 - self._refers[start:end])
        self._pair_first[dropped[self._pair_count[dropped] == 0]] = _NOWHERE
        self._pair_second[dropped[self._pair_count[dropped] <= 1]] = _NOWHERE
        self.n_known = start
        if len(self._pairs) > 2 * start + _SLACK:
            kept, refers = self.ids.copy(), self._refers[:start] == 1
            self._forget()
            self.learn(kept, refers)

    def statistics(self, token_index: IndexArray) -> IdStatistics:
        """Surprisal of some tokens, and which of them are named later; of the shape of ``token_index`` (int64)."""
        known = token_index < self.n_known
        if not known.any():
            nothing = np.zeros(token_index.shape, dtype=np.float32)
            return IdStatistics(nothing, nothing > 0)
        index = np.where(known, token_index, 0)
        word, pair, previous = self._word[index], self._pair[index], np.maximum(index - 1, 0)
        words, pairs = self._word_count[word] - 1, self._pair_count[pair] - 1
        before = np.where(index > 0, self._word_count[self._word[previous]] - 1, 0)
        nats = np.zeros(index.shape, dtype=np.float64)
        named = np.zeros(index.shape, dtype=np.bool_)
        found = self._named_later(index, np.nonzero(_few(words) | _few(before)))
        if found.later.size:
            words[found.places] -= found.later
            pairs[found.places] -= found.ends_pair * found.later
            before[found.places] -= found.ends_pair * found.later
            nats[found.places] = NAMED_LATER_NATS
            named[found.places] = found.telling
        alone = words + PRIOR_TOKENS / (PRIOR_NORM * (self._ids[index] + RANK_OFFSET))
        alone /= self.n_known + PRIOR_TOKENS
        chance = (pairs + alone) / (before + 1)
        return IdStatistics(np.where(known, nats - np.log(chance), 0.0).astype(np.float32), named & known)

    def _named_later(self, index: IndexArray, some: _Places) -> _Named:
        """Which of some known tokens belong to a name that is named later.

        Args:
            index: int64, any shape: tokens.
            some: the places in it that are asked about.
        """
        at = index[some]
        ends, begins = self._next_place(at), self._next_place(at + 1)
        returns = np.nonzero((ends > 0) | (begins > 0))
        at, ends, begins = at[returns], ends[returns], begins[returns]
        if not at.size:
            return _Named(tuple(places[:0] for places in some), at, ends > 0, ends > 0)
        pair = at + (ends == 0)  # the pair of the two that comes again, and how far behind
        count, behind = self._pair_count[self._pair[pair]], np.where(ends > 0, ends, begins) - pair
        around = pair[:, None] + np.arange(-NAME_TOKENS - 1, NAME_TOKENS + 1)
        inside = (around >= 0) & (around + behind[:, None] < self.n_known)
        here = np.where(inside, around, 0)
        same = inside & (self._ids[here] == self._ids[np.where(inside, around + behind[:, None], 0)])
        run = np.concatenate(
            [np.logical_and.accumulate(same[:, NAME_TOKENS::-1], axis=1)[:, ::-1],
             np.logical_and.accumulate(same[:, NAME_TOKENS + 1 :], axis=1)], axis=1
        )  # fmt: skip
        own = run & (self._word_count[self._word[here]] == count[:, None])
        length, n_own = run.sum(axis=1), own.sum(axis=1)
        is_name = (length <= SHORT_NAME_TOKENS) | ((length <= NAME_TOKENS) & (OWN_SHARE * length <= n_own))
        place = np.arange(at.size), NAME_TOKENS + 1 - (ends == 0)  # of the token itself among those around
        before = (ends > 0) & own[place[0], place[1] - 1]
        names = np.nonzero(is_name & (own[place] | before))[0]
        telling = ((self._ids[here] >= RARE_ID) & run).sum(axis=1) >= RARE_TOKENS
        places = tuple(places[returns][names] for places in some)
        return _Named(places, count[names] - 1, ends[names] > 0, telling[names])

    def _next_place(self, index: IndexArray) -> IndexArray:
        """Where the pair that ends at each token stands again first, int64 [like ``index``].

        0 where it does not, or too near, or too often, or where nobody refers to it, or where it has stood before.
        """
        inside = (index > 0) & (index < self.n_known)
        known = np.where(inside, index, 0)
        pair = self._pair[known]
        count, second = self._pair_count[pair], self._pair_second[pair]
        inside &= (count > 1) & (count <= MOST_NAMINGS) & (self._pair_first[pair] == index)
        inside &= self._pair_read[pair] == 1 - self._refers[known]  # read, not said, at most where it stands first
        return np.where(inside & (second - index >= LATER_TOKENS), second, 0)


def _few(others: IndexArray) -> BoolArray:
    """Whether a word with so many other places may be of a name that is named later."""
    return (others > 0) & (others < MOST_NAMINGS)


def _with_room(values: IndexArray, n: int, filled_with: int = 0) -> IndexArray:
    """The same values with room for n, doubled where it has to grow."""
    if n <= values.shape[0]:
        return values
    return np.concatenate(
        [values, np.full(max(n, 2 * values.shape[0], 64) - values.shape[0], filled_with, dtype=np.int64)]
    )
