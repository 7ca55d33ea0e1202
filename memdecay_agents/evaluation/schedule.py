"""The engine's steps for one session, in its own order: what is computed, sampled and measured, and when.

A turn prefills its new tokens in chunks, then decodes. The last sampled token of a turn is computed in the next one:

    turn 1   [chunk][chunk][rest, samples g1] [g1] [g2] .. [g_G-1, samples g_G]
    turn 2   [g_G, new tokens ...]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memdecay_agents.evaluation.traces import Turn


class Step(NamedTuple):
    """One engine step of one request: positions [start, end) are computed."""

    start: int
    end: int
    samples: bool
    """Whether a token is sampled from the last position."""

    @property
    def is_decode(self) -> bool:
        """Whether only one token is left to compute."""
        return self.samples and self.end - self.start == 1


def turn_steps(turn: Turn, computed_tokens: int, chunk_tokens: int) -> Iterator[Step]:
    """The steps of one turn.

    Args:
        turn: where its prompt and its output end; without output one token is sampled and forgotten.
        computed_tokens: what earlier turns computed.
        chunk_tokens: most tokens of one step.
    """
    at = computed_tokens
    while at < turn.prompt_end:
        end = min(at + chunk_tokens, turn.prompt_end)
        yield Step(at, end, end == turn.prompt_end)
        at = end
    for position in range(turn.prompt_end, turn.end - 1):
        yield Step(position, position + 1, True)


def computed_at_end(turns: Sequence[Turn]) -> int:
    """Tokens whose keys and values exist when the last turn has ended."""
    last = turns[-1]
    return max(last.prompt_end, last.end - 1)
