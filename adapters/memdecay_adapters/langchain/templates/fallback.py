"""Regions from the finished text alone, for templates that defeat taint tracking.

The contents of the messages are searched for in the rendered text, in order; what is found gets its region and
the rest is glue by the usual rule. A content that a template rewrote is not found and goes with its
neighbours: regions are approximate, the text and the token ids stay exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from memdecay_adapters.langchain.templates.json_text import strings_in
from memdecay_adapters.langchain.templates.origin import Origin, Run
from memdecay_adapters.langchain.templates.taint import plain, runs_of

MIN_ANCHOR_CHARS = 4
"""Shorter contents are not searched for: they would be found inside the template's own text."""


def anchored_runs(text: str, entries: Sequence[dict[str, Any]]) -> list[Run]:
    """Return runs over ``text`` made from the contents of the entries that can be found in it, in order."""
    runs: list[Run] = []
    position = 0
    for anchor, origin in _anchors(entries):
        start, found = _find(text, anchor, position)
        if start < 0:
            continue
        if start > position:
            runs.append((start - position, None))
        runs.append((len(found), origin))
        position = start + len(found)
    if position < len(text):
        runs.append((len(text) - position, None))
    return runs


def _find(text: str, anchor: str, position: int) -> tuple[int, str]:
    start = text.find(anchor, position)
    if start >= 0:
        return start, anchor
    escaped = json.dumps(anchor, ensure_ascii=False)[1:-1]
    return text.find(escaped, position), escaped


def _anchors(entries: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Origin]]:
    for entry in entries:
        for key in ("reasoning_content", "thinking", "content", "tool_calls"):
            for string in strings_in(entry.get(key)):
                position = 0
                for length, source in runs_of(string):
                    piece = plain(string)[position : position + length].strip()
                    position += length
                    if isinstance(source, Origin) and len(piece) >= MIN_ANCHOR_CHARS:
                        yield piece, source
