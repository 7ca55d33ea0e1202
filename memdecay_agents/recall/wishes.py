"""What an application says the next turn will need, as it travels in a request's hints: {"regions": [...], "tokens":
[[start, end], ...]}."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import HintsError
from memdecay_agents.token_state import TokenState

MAX_RANGES = 256
"""Token ranges of one wish, at most."""

_MAX_INDEX = 2**31 - 1
_Index = Annotated[int, Field(ge=0, le=_MAX_INDEX, strict=True)]


class RecallWish(BaseModel):
    """Tokens of a session whose pages are to be on the device, named by region, by range, or both."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    regions: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = Field(default=(), max_length=128)
    """All tokens of these regions."""
    tokens: tuple[tuple[_Index, _Index], ...] = Field(default=(), max_length=MAX_RANGES)
    """Half-open ranges [start, end) of absolute token indices."""

    @field_validator("tokens")
    @classmethod
    def _not_empty(cls, tokens: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        for start, end in tokens:
            if start >= end:
                raise ValueError(f"the range [{start}, {end}) is empty")
        return tokens

    def __bool__(self) -> bool:
        """Whether anything is wished for."""
        return bool(self.regions or self.tokens)

    def __add__(self, other: RecallWish) -> RecallWish:
        """Both wishes in one; of too many ranges the oldest go."""
        tokens = tuple(dict.fromkeys((*self.tokens, *other.tokens)))
        return RecallWish(
            regions=tuple(dict.fromkeys((*self.regions, *other.regions)))[-128:], tokens=tokens[-MAX_RANGES:]
        )

    def check(self, where: str, config: MemDecayConfig) -> None:
        """Check the names.

        Raises:
            RegionError: a region is unknown.
            HintsError: the wish names nothing.
        """
        if not self:
            raise HintsError(where=where, rule="it names no region and no tokens", remedy="Leave it out.")
        for region in self.regions:
            config.region_index(region)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return self.model_dump(mode="json", exclude_defaults=True)


def wished_pages(wish: RecallWish, tokens: TokenState) -> frozenset[int]:
    """Logical pages that hold a token of the wish, whether they are on the device or not.

    Args:
        wish: unknown regions name nothing.
        tokens: of the session.
    """
    page, wanted = tokens.config.page_size_tokens, np.zeros(tokens.n_tokens, dtype=np.bool_)
    known = [position for position, name in enumerate(tokens.table.names) if name in wish.regions]
    wanted |= np.isin(tokens.region, np.asarray(known, dtype=np.int8))
    for start, end in wish.tokens:
        wanted[start:end] = True
    return frozenset(np.unique(np.flatnonzero(wanted) // page).tolist())
