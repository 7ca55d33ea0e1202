"""The ``tojson`` filter of chat templates, with origins: text exactly as transformers' filter gives it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from memdecay_adapters.langchain.templates.origin import INHERIT, Origin, Source
from memdecay_adapters.langchain.templates.taint import TaintedStr, concat, plain, runs_of, tainted


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Serialise as ``json.dumps`` does.

    Strings of one origin give that origin to the whole text; of several, each keeps its own; a value without
    any (numbers) follows what stands before it in the prompt.
    """
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    origins = {source for string in strings_in(value) for _, source in runs_of(string) if isinstance(source, Origin)}
    if len(origins) <= 1:
        source: Source = origins.pop() if origins else INHERIT
        return tainted(text, source)
    comma, colon = separators or ((", ", ": ") if indent is None else (",", ": "))
    step = " " * indent if isinstance(indent, int) else indent
    pieces = concat(_Writer(ensure_ascii, step, comma, colon, sort_keys).write(value, 0))
    return pieces if pieces == text else text


def strings_in(value: Any) -> Iterator[TaintedStr]:
    """Every string with origins inside a JSON value, keys first, in order."""
    if isinstance(value, TaintedStr):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from strings_in(key)
            yield from strings_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings_in(item)


class _Writer:
    """A JSON writer that keeps the origins of strings; its text is checked against ``json.dumps``."""

    def __init__(self, ascii_only: bool, step: str | None, comma: str, colon: str, sort_keys: bool) -> None:
        self.ascii_only, self.step, self.comma, self.colon, self.sort = ascii_only, step, comma, colon, sort_keys

    def write(self, value: Any, depth: int) -> Iterator[str]:
        if isinstance(value, str):
            yield from self.string(value)
        elif isinstance(value, dict) and value:
            items = sorted(value.items()) if self.sort else value.items()
            yield "{" + self.line(depth + 1)
            for number, (key, item) in enumerate(items):
                if number:
                    yield self.comma + self.line(depth + 1)
                yield from self.string(key if isinstance(key, str) else json.dumps({key: 0}).split('"')[1])
                yield self.colon
                yield from self.write(item, depth + 1)
            yield self.line(depth) + "}"
        elif isinstance(value, (list, tuple)) and value:
            yield "[" + self.line(depth + 1)
            for number, item in enumerate(value):
                if number:
                    yield self.comma + self.line(depth + 1)
                yield from self.write(item, depth + 1)
            yield self.line(depth) + "]"
        else:
            yield json.dumps(value)

    def line(self, depth: int) -> str:
        return "" if self.step is None else "\n" + self.step * depth

    def string(self, value: str) -> Iterator[str]:
        """A quoted string, escaped run by run; the quotes go with the outer runs."""
        position, runs = 0, [run for run in runs_of(value) if run[0]] or list(runs_of(value)[:1])
        if not runs:
            yield json.dumps(plain(value))
            return
        for number, (length, source) in enumerate(runs):
            piece = plain(value)[position : position + length]
            escaped = json.dumps(piece, ensure_ascii=self.ascii_only)[1:-1]
            opening, closing = '"' if number == 0 else "", '"' if number == len(runs) - 1 else ""
            yield tainted(opening + escaped + closing, source)
            position += length
