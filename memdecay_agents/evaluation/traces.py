"""Traces and the facts in them: as messages, and as tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from memdecay_agents.arrays import IndexArray
from memdecay_agents.errors import TraceError
from memdecay_agents.spans import Span

GENERATED_REGIONS = frozenset({"plan", "tool_in", "scratchpad"})
"""Regions that an agent writes itself: their tokens are decoded one by one, all others are prefilled."""

Message = Mapping[str, Any]
"""``role`` and ``content``, with ``tool_calls`` and ``tool_call_id`` where they apply; ``region`` where the region is
given and not inferred."""


@dataclass(frozen=True)
class Question:
    """A text whose next word is the fact's value, and the values to choose from."""

    stem: str
    candidates: tuple[str, ...]
    """The right value first, then values of the same kind that do not occur in the trace."""
    attribute: str = ""
    """What the value belongs to, so that it can be asked for in other words; empty: the stem is the only way."""


@dataclass(frozen=True)
class Fact:
    """A sentence of a trace that something later may depend on."""

    id: str
    message: int
    """Index of the message that holds it."""
    text: str
    """Exactly as it stands in the message, or in the written form of one of its tool calls."""
    question: Question | None = None
    """None: only survival is looked at."""
    asked_as: str = ""
    """A user's question that it answers, where there are no values to choose from."""
    mentioned_again: bool = False
    """Whether a later message comes back to it without repeating its value."""
    needed_by_message: int | None = None
    """Index of the message that depends on it; None: it is needed at the end."""


@dataclass(frozen=True)
class Trace:
    """One conversation of an agent."""

    id: str
    source: str
    """Generator, or name of the trace file."""
    messages: tuple[Message, ...]
    facts: tuple[Fact, ...] = ()
    nominal_tokens: int = 0
    """The length that was asked for; 0: whatever it is."""
    supersedes: Mapping[int, int] = field(default_factory=dict)
    """Message index to the earlier message that it replaces."""


@dataclass(frozen=True)
class TokenFact:
    """A fact as tokens [start, end) of a trace."""

    id: str
    region: str
    start: int
    end: int
    needed_at: int
    """Position of the first query that depends on it; the trace's length where it is needed at the end."""
    question: Question | None = None
    mentioned_again: bool = False
    asked_as: str = ""


class Turn(NamedTuple):
    """The prompt of one request ends at ``prompt_end``; what is generated then ends at ``end``."""

    prompt_end: int
    end: int


@dataclass(frozen=True, eq=False)
class TokenTrace:
    """A trace as the engine sees it: n tokens."""

    id: str
    source: str
    length: int
    """Nominal length in tokens, for grouping: as asked for, or the next power of two."""
    token_ids: IndexArray
    """int64 [n]."""
    spans: tuple[Span, ...]
    """A partition of [0, n)."""
    facts: tuple[TokenFact, ...] = ()
    superseded: tuple[tuple[int, int, int], ...] = ()
    """(start, end, from): the tokens [start, end) are superseded once ``from`` tokens exist."""

    @property
    def n_tokens(self) -> int:
        """n."""
        return int(self.token_ids.shape[0])

    def turns(self) -> list[Turn]:
        """The requests of an agent that writes this trace: each stretch of ``GENERATED_REGIONS`` ends one.

        Raises:
            TraceError: the trace begins with something generated.
        """
        generated = np.zeros(self.n_tokens + 1, dtype=np.bool_)
        for span in self.spans:
            generated[span.start : span.end] = span.region in GENERATED_REGIONS
        if generated[0]:
            raise TraceError(
                where=f"trace {self.id!r}",
                rule="it begins with something that the agent wrote",
                remedy="Begin with a system or a user message.",
            )
        edges = [0, *(np.flatnonzero(np.diff(generated)) + 1).tolist()]
        turns = [Turn(a, b) for a, b in pairwise(edges) if generated[a]]
        if not turns or turns[-1].end < self.n_tokens:
            turns.append(Turn(self.n_tokens, self.n_tokens))
        return turns


def facts_by_region(facts: Sequence[TokenFact]) -> dict[str, list[TokenFact]]:
    """Facts grouped by region."""
    grouped: dict[str, list[TokenFact]] = {}
    for fact in facts:
        grouped.setdefault(fact.region, []).append(fact)
    return grouped
