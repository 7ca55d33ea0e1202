"""What each computed position of a row could see, step by step: the mask under which the oracle must agree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch


class Stretch(NamedTuple):
    """Positions computed in one step, or found in a cache."""

    first: int
    end: int
    holes: frozenset[int]
    """Logical pages that the row did not hold."""


@dataclass
class Sight:
    """One row's life, from its first position on."""

    stretches: list[Stretch] = field(default_factory=list)
    ever_gone: set[int] = field(default_factory=set)
    """Pages that the row did not hold at some time."""

    @classmethod
    def clean(cls, tokens: int) -> Sight:
        """A prefix of which every position saw all before it."""
        return cls([Stretch(0, tokens, frozenset())] if tokens else [])

    @property
    def end(self) -> int:
        """Positions whose keys and values were computed."""
        return self.stretches[-1].end if self.stretches else 0

    @property
    def clean_tokens(self) -> int | None:
        """Leading positions that saw all before them; None: every one did."""
        return next((stretch.first for stretch in self.stretches if stretch.holes), None)

    def truncated(self, tokens: int) -> Sight:
        """The first ``tokens`` positions, as a row that was rewound remembers them."""
        kept = [stretch for stretch in self.stretches if stretch.first < tokens]
        return Sight([stretch._replace(end=min(stretch.end, tokens)) for stretch in kept], set(self.ever_gone))

    def extend(self, tokens: int, holes: frozenset[int]) -> None:
        """One step computed ``tokens`` more positions while these pages were gone."""
        self.ever_gone |= holes
        last = self.stretches[-1] if self.stretches else None
        if last is not None and last.holes == holes:
            self.stretches[-1] = last._replace(end=last.end + tokens)
        else:
            self.stretches.append(Stretch(self.end, self.end + tokens, holes))

    def hidden(self, page_size_tokens: int) -> torch.Tensor:
        """bool ``[n, n]``: True where the query of a row may not see the key of a column."""
        hidden = torch.ones(self.end, self.end, dtype=torch.bool).triu(1)
        for first, end, holes in self.stretches:
            for page in holes:
                hidden[first:end, page * page_size_tokens : (page + 1) * page_size_tokens] = True
        return hidden
