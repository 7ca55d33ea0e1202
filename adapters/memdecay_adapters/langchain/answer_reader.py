"""Readers of a generated answer: they cut it into text, reasoning and tool calls, piece by piece as it comes.

A whole answer is read by the same code as a stream, so that both give one message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from memdecay_adapters.langchain.think_reader import Reasoning, ThinkReader
from memdecay_adapters.langchain.tool_parsing import CallStart, ParsedCall, ToolCallReader

Piece = str | Reasoning | CallStart | ParsedCall
"""Text, reasoning, the name of a tool call that has begun, or the call, whole."""


class AnswerReader(Protocol):
    """Reads one answer."""

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the pieces so far that were reasoning."""
        ...

    def feed(self, text: str, token_ids: Sequence[int]) -> list[Piece]:
        """Take a piece of the answer; return what can be told so far, in order."""
        ...

    def finish(self, finish_reason: str) -> list[Piece]:
        """Return the rest; what cannot be read comes out as an invalid call or as text."""
        ...


class NativeReader:
    """Reads ``<think>`` blocks and ``<tool_call>`` JSON without any of vLLM's parsers.

    Args:
        calls: whether tool calls may be in the answer; else their tags are text.
        thinking: whether the answer may open with reasoning; else its tags are text.
        opened: whether the prompt itself ends with an open ``<think>``.
    """

    def __init__(self, *, calls: bool, thinking: bool = False, opened: bool = False) -> None:
        self._think = ThinkReader(thinking, opened)
        self._calls = ToolCallReader(calls)
        self._reasoning_tokens = 0

    @property
    def reasoning_tokens(self) -> int:
        """See `AnswerReader.reasoning_tokens`."""
        return self._reasoning_tokens

    def feed(self, text: str, token_ids: Sequence[int]) -> list[Piece]:
        """See `AnswerReader.feed`."""
        if self._think.inside:
            self._reasoning_tokens += len(token_ids)
        return self._cut(self._think.feed(text))

    def finish(self, finish_reason: str) -> list[Piece]:
        """See `AnswerReader.finish`."""
        return [*self._cut(self._think.finish()), *self._calls.finish(finish_reason)]

    def _cut(self, found: Iterable[str | Reasoning]) -> list[Piece]:
        pieces: list[Piece] = []
        for piece in found:
            if isinstance(piece, Reasoning):
                pieces.append(piece)
            else:
                pieces.extend(self._calls.feed(piece))
        return pieces


class Refined:
    """One reader after another: the second cuts up what is text to the first."""

    def __init__(self, first: AnswerReader, second: ThinkReader | ToolCallReader) -> None:
        self._first, self._second = first, second

    @property
    def reasoning_tokens(self) -> int:
        """The first reader's; see `AnswerReader`."""
        return self._first.reasoning_tokens

    def feed(self, text: str, token_ids: Sequence[int]) -> list[Piece]:
        """See `AnswerReader.feed`."""
        return self._cut(self._first.feed(text, token_ids))

    def finish(self, finish_reason: str) -> list[Piece]:
        """See `AnswerReader.finish`."""
        return [*self._cut(self._first.finish(finish_reason)), *self._second.finish(finish_reason)]

    def _cut(self, pieces: Iterable[Piece]) -> list[Piece]:
        found: list[Piece] = []
        for piece in pieces:
            found.extend(self._second.feed(piece) if isinstance(piece, str) else [piece])
        return found


class Answer(NamedTuple):
    """A whole answer."""

    text: str
    reasoning: str
    calls: list[ParsedCall]


def collect(pieces: Iterable[Piece]) -> Answer:
    """Put pieces together."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ParsedCall] = []
    for piece in pieces:
        if isinstance(piece, str):
            texts.append(piece)
        elif isinstance(piece, Reasoning):
            thoughts.append(piece.text)
        elif isinstance(piece, ParsedCall):
            calls.append(piece)
    return Answer("".join(texts), "".join(thoughts), calls)
