"""Reading a leading ``<think>...</think>`` block out of generated text, piece by piece."""

from __future__ import annotations

from typing import NamedTuple

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"


class Reasoning(NamedTuple):
    """A piece of the model's reasoning, tags left out."""

    text: str


class ThinkReader:
    """Cuts a stream of text into one leading block of reasoning and the text after it.

    Only a block that opens the answer counts: a tag later on is text. The line breaks inside the tags' edges and
    the blanks after the block belong to the tags, as chat templates write them. A block that never closes is
    reasoning to the end.

    Args:
        enabled: all is text if not.
        opened: whether the prompt ends with the opening tag, so that the answer begins inside the block.
    """

    def __init__(self, enabled: bool = True, opened: bool = False) -> None:
        self._state = "text" if not enabled else "inside" if opened else "before"
        self._buffer = ""
        self._at_start = True

    @property
    def inside(self) -> bool:
        """Whether the reasoning is open."""
        return self._state == "inside"

    def feed(self, delta: str) -> list[str | Reasoning]:
        """Take a piece of text; return what can be told so far."""
        self._buffer += delta
        found: list[str | Reasoning] = []
        if self._state == "before":
            start = self._buffer.lstrip()
            if THINK_OPEN.startswith(start) and start != THINK_OPEN:
                return found
            if start.startswith(THINK_OPEN):
                self._state, self._buffer = "inside", start[len(THINK_OPEN) :]
            else:
                self._state = "text"
        if self._state == "inside":
            self._read_inside(found)
        if self._state == "after":
            self._buffer = self._buffer.lstrip()
            self._state = "text" if self._buffer else "after"
        if self._state == "text" and self._buffer:
            found.append(self._buffer)
            self._buffer = ""
        return found

    def finish(self, finish_reason: str = "stop") -> list[str | Reasoning]:
        """Return what is left, however the answer ended."""
        rest, self._buffer = self._buffer, ""
        if self._state == "inside":
            rest = rest.rstrip("\n")
            return [Reasoning(rest)] if rest else []
        return [rest] if rest and self._state == "before" else []

    def _read_inside(self, found: list[str | Reasoning]) -> None:
        if self._at_start:
            self._buffer = self._buffer.lstrip("\n")
            if not self._buffer:
                return
            self._at_start = False
        close = self._buffer.find(THINK_CLOSE)
        if close >= 0:
            text, self._buffer = self._buffer[:close].rstrip("\n"), self._buffer[close + len(THINK_CLOSE) :]
            self._state = "after"
        else:
            end = len(self._buffer) - _overlap(self._buffer, THINK_CLOSE)
            end = len(self._buffer[:end].rstrip("\n"))  # line breaks that may stand before the closing tag
            text, self._buffer = self._buffer[:end], self._buffer[end:]
        if text:
            found.append(Reasoning(text))


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of ``text`` that begins ``tag``."""
    return next((n for n in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:n])), 0)
