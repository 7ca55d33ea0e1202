"""Where characters of a rendered prompt come from."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from memdecay_adapters.langchain.regions import Label

PREAMBLE: Final = -1
"""Entry number of what belongs to no message: tool schemas, the template's own system text."""


class Origin(NamedTuple):
    """Characters that came from the data: the entry (message) they belong to, and their label."""

    entry: int
    label: Label


class Inherit(NamedTuple):
    """Characters made from data that carries no origin (a number, a bool): they follow what stands before."""


class Mark(NamedTuple):
    """A zero-width mark that the template's structure leaves in the output."""

    kind: Literal["iteration", "exit", "generation"]
    key: int = 0
    """Number of the loop or block in the template."""
    entry: int = PREAMBLE
    """Entry that an iteration is about."""


INHERIT: Final = Inherit()

Source: TypeAlias = Origin | Inherit | Mark | None
"""Origin of a run; None: text of the template itself ("glue")."""

Run: TypeAlias = tuple[int, Source]
"""(length in characters, source); marks have length 0."""
