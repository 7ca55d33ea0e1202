"""The glue rule: from runs and marks to stretches of text that each have one label.

    system preamble | header | content | glue | content | footer | header | ...  | generation prompt
    system          | default of the  message | next's  | default of the message | output region

Text of the template between two contents of one message goes with the content that follows; before the first
and after the last it goes with the message's default label. What belongs to no message is system. What a template
writes after its last message opens the answer, where one is asked for: the header of an answer that stands in the
conversation holds the same words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from memdecay_adapters.langchain.regions import Label
from memdecay_adapters.langchain.templates.origin import Inherit, Mark, Origin, Run

_OUTSIDE = -2  # no message's iteration


class Stretch(NamedTuple):
    """Characters [start, end) of the rendered text and their label."""

    start: int
    end: int
    label: Label


class Resolved(NamedTuple):
    """The whole text, cut into labelled stretches without gaps."""

    stretches: list[Stretch]
    generation_start: int | None
    """First character behind the last message by the template's marks; None: no mark, or content after it."""
    entries: dict[int, tuple[int, int]]
    """Characters [first, past the last) of each entry, header and footer included; entries may share characters."""


class _Piece(NamedTuple):
    start: int
    end: int
    source: Origin | Inherit | None
    visit: int
    """Number of the iteration this stands in: another visit is another header and footer."""
    entry: int


def resolve(runs: Sequence[Run], defaults: Sequence[Label], preamble: Label) -> Resolved:
    """Give every character a label.

    Args:
        runs: the runs of the rendered text, marks among them.
        defaults: default label of each entry.
        preamble: label of what belongs to no entry.
    """
    pieces, generation_start = _place(runs)
    return Resolved(_label(pieces, defaults, preamble), generation_start, _entries(pieces))


def _entries(pieces: Sequence[_Piece]) -> dict[int, tuple[int, int]]:
    """Characters of each entry: its iterations, and wherever its content stands."""
    found: dict[int, tuple[int, int]] = {}
    owner = _OUTSIDE
    for piece in pieces:
        inside = piece.source.entry if isinstance(piece.source, Origin) else _OUTSIDE
        if piece.entry >= 0:
            owner = piece.entry
        elif inside >= 0:
            owner = inside
        for entry in {owner, inside}:
            if entry >= 0:
                start, end = found.get(entry, (piece.start, piece.end))
                found[entry] = (min(start, piece.start), max(end, piece.end))
    return found


def _place(runs: Sequence[Run]) -> tuple[list[_Piece], int | None]:
    """Follow the marks: which iteration does each run stand in, and where does generation begin?"""
    pieces: list[_Piece] = []
    stack: list[tuple[int, int, int]] = [(0, 0, _OUTSIDE)]  # (loop key, visit, entry)
    visits, position, generation_start = 0, 0, None
    for length, source in runs:
        if isinstance(source, Mark):
            if source.kind == "generation":
                generation_start = position if generation_start is None else generation_start
                continue
            depth = next((i for i, (key, _, _) in enumerate(stack) if key == source.key), None)
            if depth is not None:
                del stack[depth:]
                if len(stack) == 1 and generation_start is None:
                    generation_start = position
            if source.kind == "iteration":
                generation_start = None
                visits += 1
                stack.append((source.key, visits, source.entry))
        elif length:
            if isinstance(source, Origin):
                generation_start = None  # content follows: that was no generation prompt
            _, visit, entry = stack[-1]
            pieces.append(_Piece(position, position + length, source, visit, entry))
            position += length
    return pieces, generation_start


def _label(pieces: Sequence[_Piece], defaults: Sequence[Label], preamble: Label) -> list[Stretch]:
    def default(entry: int) -> Label:
        return defaults[entry] if entry >= 0 else preamble

    stretches: list[Stretch] = []
    waiting = 0  # start of glue whose owner is not known yet
    visit, owner, last = 0, _OUTSIDE, None  # of the current zone; last content in it
    for piece in pieces:
        if piece.visit != visit:
            _add(stretches, waiting, piece.start, default(owner))
            waiting, visit = piece.start, piece.visit
            if piece.entry != _OUTSIDE:  # else the loop is over, and the last message's footer goes on
                owner = piece.entry
            last = None
        if isinstance(piece.source, Origin):
            label, inside = piece.source.label, piece.source.entry
            follows = last is not None and (piece.entry >= 0 or last.entry == inside)
            _add(stretches, waiting, piece.start, label if follows else default(owner))
            last = piece.source
            if piece.entry == _OUTSIDE:
                owner = inside
        elif isinstance(piece.source, Inherit):
            label = last.label if last is not None else default(owner)
            _add(stretches, waiting, piece.start, label)
        else:
            continue
        _add(stretches, piece.start, piece.end, label)
        waiting = piece.end
    if pieces:
        _add(stretches, waiting, pieces[-1].end, default(owner))
    return stretches


def _add(stretches: list[Stretch], start: int, end: int, label: Label) -> None:
    if start >= end:
        return
    if stretches and stretches[-1].label == label:
        stretches[-1] = stretches[-1]._replace(end=end)
    else:
        stretches.append(Stretch(start, end, label))


def with_generation(stretches: list[Stretch], start: int, label: Label) -> list[Stretch]:
    """Give the text from ``start`` on, the generation prompt, to ``label``."""
    end = stretches[-1].end if stretches else 0
    kept: list[Stretch] = []
    for stretch in stretches:
        _add(kept, stretch.start, min(stretch.end, start), stretch.label)
    _add(kept, start, end, label)
    return kept
