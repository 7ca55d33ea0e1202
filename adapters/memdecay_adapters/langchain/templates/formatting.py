"""``%`` and ``str.format`` in templates, with origins."""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Any

import jinja2
from jinja2.sandbox import SandboxedFormatter

from memdecay_adapters.langchain.templates.origin import Origin
from memdecay_adapters.langchain.templates.taint import TaintedStr, concat, runs_of, tainted


def percent(template: str, values: Any) -> str:
    """Return ``template % values``.

    Where ``%s`` is the only directive and each of its values a string, every value keeps its origins. Otherwise
    the whole text gets the origin that the strings share, or none.
    """
    text = str.__mod__(template, values)
    if isinstance(values, dict):
        given = list(values.values())
    else:
        given = list(values) if isinstance(values, tuple) else [values]
    literals = template.split("%s")
    if len(literals) == len(given) + 1 and all(isinstance(value, str) for value in given):
        pieces = concat(piece for pair in zip(literals, [*given, ""], strict=True) for piece in pair)
        if pieces == text:
            return pieces
    strings = [template, *(value for value in given if isinstance(value, TaintedStr))]
    found = {s for string in strings for length, s in runs_of(string) if length and isinstance(s, Origin)}
    return tainted(text, found.pop()) if len(found) == 1 else text


def format_fields(env: jinja2.Environment, template: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return ``template.format(*args, **kwargs)`` in a sandbox; a whole string field keeps its origins."""
    formatter = SandboxedFormatter(env)
    whole = formatter.vformat(template, args, kwargs)
    pieces: list[str] = []
    number = 0
    for literal, field, spec, conversion in Formatter().parse(template):
        pieces.append(literal)
        if field is None:
            continue
        if field == "" or not (field[0].isalnum() or field[0] == "_"):
            field, number = f"{number}{field}", number + 1
        value, _ = formatter.get_field(field, args, kwargs)
        if not isinstance(value, TaintedStr) or spec or conversion not in (None, "s"):
            piece = formatter.format_field(formatter.convert_field(value, conversion), spec or "")
            sources = {source for _, source in runs_of(value)} if isinstance(value, TaintedStr) else set()
            value = tainted(piece, sources.pop()) if len(sources) == 1 else piece
        pieces.append(value)
    made = concat(pieces)
    return made if made == whole else whole
