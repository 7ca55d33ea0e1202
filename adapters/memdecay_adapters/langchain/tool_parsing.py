"""Reading tool calls out of generated text, piece by piece as it streams.

What cannot be read is never dropped: a call that breaks off (``finish_reason="length"``) or is no JSON comes
out as an invalid call that holds its raw text.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import Any, NamedTuple

from memdecay_adapters.langchain.tool_grammar import CALL_CLOSE, CALL_OPEN

_OPENING = re.compile(r'<tool_call>\s*\{\s*"name"\s*:\s*"([^"\\]+)"')
_NAME = re.compile(r'"name"\s*:\s*"((?:[^"\\]|\\.)*)"')


class ParsedCall(NamedTuple):
    """A tool call as it was generated."""

    name: str | None
    arguments: dict[str, Any] | None
    """None: the call is invalid."""
    raw: str
    """The text of the call, tags included."""
    error: str | None
    id: str

    @property
    def valid(self) -> bool:
        """Whether the call can be run."""
        return self.arguments is not None


class CallStart(NamedTuple):
    """A call has begun: its name is known. Its `ParsedCall` follows, with the same name and id."""

    name: str
    id: str


class ToolCallReader:
    """Cuts a stream of text into plain text and tool calls.

    `feed` returns what can be told so far, the name of a call before its arguments; text that may be the beginning of
    a tag is held back. `finish` returns the rest. The line break before a call belongs to the call, as in the prompt
    of the next turn; blanks after a call are dropped. With ``enabled=False`` all is text.
    """

    def __init__(self, enabled: bool = True) -> None:
        """Start with nothing read."""
        self._enabled = enabled
        self._buffer = ""
        self._after_call = False
        self._started: CallStart | None = None

    def feed(self, delta: str) -> list[str | CallStart | ParsedCall]:
        """Take a piece of text; return text and calls in order."""
        if not self._enabled:
            return [delta] if delta else []
        self._buffer += delta
        found: list[str | CallStart | ParsedCall] = []
        while True:
            start = self._buffer.find(CALL_OPEN)
            if start < 0:
                held = max(_overlap(self._buffer, CALL_OPEN), _overlap(self._buffer, "\n" + CALL_OPEN))
                self._release(found, len(self._buffer) - held)
                return found
            self._release(found, start, before_call=True)
            self._start_call(found)
            end = _end_of_call(self._buffer)
            if end is None:
                return found
            self._take_call(found, end, None)

    def finish(self, finish_reason: str = "stop") -> list[str | CallStart | ParsedCall]:
        """Return what is left; an open call is invalid, unless only its closing tag is missing."""
        found: list[str | CallStart | ParsedCall] = []
        if self._buffer.startswith(CALL_OPEN):
            rule = f"the call broke off (finish_reason={finish_reason!r})"
            if finish_reason == "length":
                rule += ": raise max_tokens"
            self._take_call(found, len(self._buffer), rule)
        self._release(found, len(self._buffer))
        return found

    def _start_call(self, found: list[str | CallStart | ParsedCall]) -> None:
        opening = _OPENING.match(self._buffer) if self._started is None else None
        if opening is not None:
            self._started = CallStart(opening.group(1), new_call_id())
            found.append(self._started)

    def _release(self, found: list[str | CallStart | ParsedCall], end: int, before_call: bool = False) -> None:
        text, self._buffer = self._buffer[:end], self._buffer[end:]
        if before_call:
            text = text.removesuffix("\n")
        if self._after_call:
            text = text.lstrip()
        if text:
            self._after_call = False
            found.append(text)

    def _take_call(self, found: list[str | CallStart | ParsedCall], end: int, error: str | None) -> None:
        raw, self._buffer = self._buffer[:end], self._buffer[end:]
        self._after_call = True
        call, started, self._started = parse_call(raw, error), self._started, None
        if started is not None:
            call = call._replace(id=started.id)
            if call.name != started.name:  # JSON may repeat a key
                call = call._replace(name=started.name, arguments=None, error="the call has two names")
        found.append(call)


def new_call_id() -> str:
    """An id for a call, as OpenAI's look."""
    return f"call_{uuid.uuid4().hex[:24]}"


def parse_call(raw: str, error: str | None = None) -> ParsedCall:
    """Parse one call.

    Args:
        raw: ``<tool_call>`` and what follows, up to and with ``</tool_call>`` where it is there.
        error: what to say if the text does not parse.
    """
    body = raw.removeprefix(CALL_OPEN).strip().removesuffix(CALL_CLOSE).strip()
    call_id = new_call_id()
    try:
        call = json.loads(body, strict=False)
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise ValueError("a call is an object with 'name' and 'arguments'")
        arguments = call.get("arguments", call.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = json.loads(arguments, strict=False)
        if not isinstance(arguments, dict):
            raise ValueError("'arguments' is no object")
    except ValueError as problem:
        name = _NAME.search(body)
        return ParsedCall(name.group(1) if name else None, None, raw, error or str(problem), call_id)
    return ParsedCall(call["name"], arguments, raw, None, call_id)


def read_all(text: str, finish_reason: str = "stop", enabled: bool = True) -> tuple[str, list[ParsedCall]]:
    """Cut a whole answer into its text and its calls, exactly as the stream would."""
    reader = ToolCallReader(enabled)
    found = [*reader.feed(text), *reader.finish(finish_reason)]
    return "".join(f for f in found if isinstance(f, str)), [f for f in found if isinstance(f, ParsedCall)]


def _end_of_call(buffer: str) -> int | None:
    """End of the call that the buffer starts with, or None while it is open.

    The closing tag may stand inside a string of the arguments: it counts where the JSON before it is whole,
    or where another call begins.
    """
    position = len(CALL_OPEN)
    while (close := buffer.find(CALL_CLOSE, position)) >= 0:
        position = close + len(CALL_CLOSE)
        if not _inside_string(buffer[len(CALL_OPEN) : close]):
            return position
    return None


def _inside_string(text: str) -> bool:
    inside = escaped = False
    for char in text:
        if escaped:
            escaped = False
        elif inside and char == "\\":
            escaped = True
        elif char == '"':
            inside = not inside
    return inside


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of ``text`` that begins ``tag``."""
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
