"""``TaintedStr``: a string that knows where each of its characters comes from.

It is a ``str`` in all but origin: every method gives the same text as ``str`` would, and what templates use
(strip, split, slices, ``+``, replace, join, case ...) keeps the origins, as runs. A method that is not
covered gives a plain string: the text stays right, and the piece counts as text of the template. ``%`` and
``format`` are in ``formatting``, where the environment sends them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import SupportsIndex

from memdecay_adapters.langchain.templates.origin import Mark, Origin, Run, Source


class TaintedStr(str):
    """A string with the source of each character, as runs."""

    __slots__ = ("_runs",)
    _runs: tuple[Run, ...]

    def __str__(self) -> str:
        """Return itself: ``str(x)`` in compiled templates must not lose the origins."""
        return self

    def __add__(self, other: str) -> str:
        """Text and origins of both, in order."""
        if not isinstance(other, str) or hasattr(other, "__html__"):
            return NotImplemented
        return concat((self, other))

    def __radd__(self, other: str) -> str:
        """Text and origins of both, in order."""
        return concat((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> str:
        """Repeat text and origins."""
        return concat([self] * times.__index__())

    __rmul__ = __mul__

    def __iter__(self) -> Iterator[str]:
        """Characters, with their origins."""
        return (cut(self, i, i + 1) for i in range(len(self)))

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        """An index or a slice, with its origins."""
        if not isinstance(key, slice):
            str.__getitem__(self, key)  # raises as str does; templates and Jinja rely on which error
            index = key.__index__()
            start = index if index >= 0 else index + len(self)
            return cut(self, start, start + 1)
        start, stop, step = key.indices(len(self))
        if step == 1:
            return cut(self, start, max(start, stop))
        return concat([cut(self, i, i + 1) for i in range(start, stop, step)])

    def strip(self, chars: str | None = None, /) -> str:
        """As ``str.strip``."""
        start = len(self) - len(str.lstrip(self, chars))
        return cut(self, start, max(start, len(str.rstrip(self, chars))))

    def lstrip(self, chars: str | None = None, /) -> str:
        """As ``str.lstrip``."""
        return cut(self, len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None, /) -> str:
        """As ``str.rstrip``."""
        return cut(self, 0, len(str.rstrip(self, chars)))

    def removeprefix(self, prefix: str, /) -> str:
        """As ``str.removeprefix``."""
        return cut(self, len(self) - len(str.removeprefix(self, prefix)), len(self))

    def removesuffix(self, suffix: str, /) -> str:
        """As ``str.removesuffix``."""
        return cut(self, 0, len(str.removesuffix(self, suffix)))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """As ``str.split``."""
        return self._locate(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """As ``str.rsplit``."""
        return self._locate(str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        """As ``str.splitlines``."""
        lines, position = [], 0
        kept = str.splitlines(self, keepends=True)
        for line, whole in zip(str.splitlines(self, keepends=keepends), kept, strict=True):
            lines.append(cut(self, position, position + len(line)))
            position += len(whole)
        return lines

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        """As ``str.partition``."""
        a, b, _ = (len(part) for part in str.partition(self, sep))
        return cut(self, 0, a), cut(self, a, a + b), cut(self, a + b, len(self))

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        """As ``str.rpartition``."""
        a, b, _ = (len(part) for part in str.rpartition(self, sep))
        return cut(self, 0, a), cut(self, a, a + b), cut(self, a + b, len(self))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        """As ``str.replace``."""
        if old == "":
            return self._same_origin(str.replace(self, old, new, count))
        parts = self.split(old, count) if self else [self]
        return join(new, parts)

    def join(self, iterable: Iterable[str], /) -> str:
        """As ``str.join``."""
        return join(self, iterable)

    def upper(self) -> str:
        """As ``str.upper``."""
        return self._case(str.upper)

    def lower(self) -> str:
        """As ``str.lower``."""
        return self._case(str.lower)

    def casefold(self) -> str:
        """As ``str.casefold``."""
        return self._case(str.casefold)

    def swapcase(self) -> str:
        """As ``str.swapcase``."""
        return self._case(str.swapcase)

    def capitalize(self) -> str:
        """As ``str.capitalize``."""
        return self._same_origin(str.capitalize(self))

    def title(self) -> str:
        """As ``str.title``."""
        return self._same_origin(str.title(self))

    def center(self, width: SupportsIndex, fillchar: str = " ", /) -> str:
        """As ``str.center``."""
        return self._same_origin(str.center(self, width, fillchar))

    def ljust(self, width: SupportsIndex, fillchar: str = " ", /) -> str:
        """As ``str.ljust``."""
        return concat((self, str.ljust(self, width, fillchar)[len(self) :]))

    def rjust(self, width: SupportsIndex, fillchar: str = " ", /) -> str:
        """As ``str.rjust``."""
        whole = str.rjust(self, width, fillchar)
        return concat((whole[: len(whole) - len(self)], self))

    def _locate(self, parts: list[str], sep: str | None) -> list[str]:
        """Give the parts of a split their origins; they stand in order in this string."""
        located, position = [], 0
        for part in parts:
            start = position if sep is not None else str.find(self, part, position)
            position = start + len(part)
            located.append(cut(self, start, position))
            position += len(sep) if sep is not None else 0
        return located

    def _case(self, change: Callable[[str], str]) -> str:
        """Change case run by run; where that differs from the whole (a final sigma), keep the only origin."""
        whole, pieces, position = change(self), [], 0
        for length, source in self._runs:
            pieces.append(tainted(change(plain(cut(self, position, position + length))), source))
            position += length
        changed = concat(pieces)
        return changed if changed == whole else self._same_origin(whole)

    def _same_origin(self, text: str) -> str:
        """Another text made from this one: it has an origin if this one has only one."""
        found = {source for length, source in self._runs if length and isinstance(source, Origin)}
        return tainted(text, found.pop()) if len(found) == 1 else text


def tainted(text: str, source: Source) -> TaintedStr:
    """A string all of whose characters have one source. A mark goes with an empty text."""
    return _make(text, ((len(text), source),))


def plain(text: str) -> str:
    """The same text as an exact ``str``."""
    return str.__str__(text) if isinstance(text, TaintedStr) else text


def runs_of(text: str) -> tuple[Run, ...]:
    """The runs of any string; a plain one is text of the template."""
    if isinstance(text, TaintedStr):
        return text._runs
    return ((len(text), None),) if text else ()


def cut(text: TaintedStr, start: int, end: int) -> str:
    """Characters [start, end) with their origins; marks do not survive a cut, a whole copy keeps them."""
    if start <= 0 and end >= len(text):
        return text
    runs, position = [], 0
    for length, source in text._runs:
        first, last = max(position, start), min(position + length, end)
        if first < last:
            runs.append((last - first, source))
        position += length
        if position >= end:
            break
    return _make(str.__getitem__(text, slice(start, end)), tuple(runs))


def concat(pieces: Iterable[str]) -> str:
    """Join pieces without a separator, keeping origins and marks; plain if no piece had any.

    A text without characters from the data keeps the origin of an empty piece: it tells which message was empty.
    """
    items = list(pieces)
    runs: list[Run] = []
    any_tainted = False
    empty: tuple[Run, ...] = ()
    for item in items:
        if isinstance(item, TaintedStr):
            any_tainted = True
            empty = empty or tuple(run for run in item._runs[:1] if not run[0] and isinstance(run[1], Origin))
            for run in item._runs:
                if run[0] or isinstance(run[1], Mark):
                    _append(runs, run)
        elif item:
            _append(runs, (len(item), None))
    text = "".join(items)
    if empty and not any(isinstance(source, Origin) for _, source in runs):
        runs[:0] = empty
    return _make(text, tuple(runs)) if any_tainted else text


def join(separator: str, parts: Iterable[str]) -> str:
    """``separator.join(parts)`` with origins."""
    pieces: list[str] = []
    for part in parts:
        if pieces:
            pieces.append(separator)
        pieces.append(part)
    return concat(pieces)


def _append(runs: list[Run], run: Run) -> None:
    if runs and run[0] and runs[-1][0] and runs[-1][1] == run[1]:
        runs[-1] = (runs[-1][0] + run[0], run[1])
    else:
        runs.append(run)


def _make(text: str, runs: tuple[Run, ...]) -> TaintedStr:
    made = str.__new__(TaintedStr, text)
    made._runs = runs
    return made
