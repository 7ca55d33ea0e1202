"""Whether all that the messages say stands in the rendered prompt, and with its label.

A template may drop a text without a word (a message of a role that it does not know), and a filter may lose the
origins of one that it writes. The first cannot be mended here and is warned about; the second is found again by
searching the template's own text for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from memdecay_adapters.langchain.templates.fallback import MIN_ANCHOR_CHARS
from memdecay_adapters.langchain.templates.json_text import strings_in
from memdecay_adapters.langchain.templates.origin import Inherit, Origin, Run
from memdecay_adapters.langchain.templates.taint import plain, runs_of


class Piece(NamedTuple):
    """A text of a message that does not stand in the prompt with its origin."""

    text: str
    origin: Origin
    role: str


class Checked(NamedTuple):
    """The runs of a prompt, as far as they could be completed."""

    runs: list[Run]
    found: list[Piece]
    """Texts that had lost their origins and were found again."""
    missing: list[Piece]
    """Texts that are not in the prompt, or in a form that is not known."""


def complete(text: str, runs: Sequence[Run], entries: Sequence[dict[str, Any]]) -> Checked:
    """Look for the messages' texts that no run of the prompt comes from.

    What a message said in reasoning is left out of this: templates drop the reasoning of older turns on purpose.

    Args:
        text: the rendered prompt.
        runs: its runs.
        entries: the messages that it was made of, with origins.
    """
    written, position = set(), 0
    for length, source in runs:
        if isinstance(source, Origin) and not text[position : position + length].isspace() and length:
            written.add(source)
        position += length
    lost = [piece for piece in _pieces(entries) if piece.origin not in written]
    if not lost:
        return Checked(list(runs), [], [])
    completed = list(runs)
    found: list[Piece] = []
    missing: list[Piece] = []
    for piece in lost:
        if _place(text, completed, piece):
            found.append(piece)
        elif not _too_short_to_tell(text, piece) and not _is_in_a_number(text, runs, piece):
            missing.append(piece)
    return Checked(completed, found, missing)


def _place(text: str, runs: list[Run], piece: Piece) -> bool:
    """Give the piece's origin to its text in the template's own text, behind all earlier entries; False: not found."""
    first = max(
        (n + 1 for n, (_, source) in enumerate(runs) if isinstance(source, Origin) and _before(source, piece)),
        default=0,
    )
    position = 0
    for number, (length, source) in enumerate(runs):
        if number >= first and source is None and len(piece.text) >= MIN_ANCHOR_CHARS:
            at = text.find(piece.text, position, position + length)
            if at >= 0:
                rest = position + length - at - len(piece.text)
                cut: list[Run] = [(at - position, None), (len(piece.text), piece.origin), (rest, None)]
                runs[number : number + 1] = [run for run in cut if run[0]]
                return True
        position += length
    return False


def _too_short_to_tell(text: str, piece: Piece) -> bool:
    return len(piece.text) < MIN_ANCHOR_CHARS and piece.text in text


def _is_in_a_number(text: str, runs: Sequence[Run], piece: Piece) -> bool:
    """Whether a template wrote it as a number ("42" as 42), whose characters have no origin."""
    position = 0
    for length, source in runs:
        if isinstance(source, Inherit) and piece.text in text[position : position + length]:
            return True
        position += length
    return False


def _before(source: Origin, piece: Piece) -> bool:
    return source.entry < piece.origin.entry


def _pieces(entries: Sequence[dict[str, Any]]) -> Iterator[Piece]:
    """What every entry says, by origins; of assistants what follows their reasoning."""
    for entry in entries:
        for key in ("content", "tool_calls"):
            for string in strings_in(entry.get(key)):
                said = plain(string)
                start = said.rfind("</think>") + len("</think>") if "</think>" in said else 0
                if "<think>" in said[start:]:
                    continue
                position = 0
                for length, source in runs_of(string):
                    piece = said[max(position, start) : max(position + length, start)].strip()
                    position += length
                    if piece and isinstance(source, Origin):
                        yield Piece(piece, source, str(entry["role"]))
