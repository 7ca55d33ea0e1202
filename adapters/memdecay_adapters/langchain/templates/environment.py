"""The Jinja environment of chat templates, as transformers configures it, with origins kept alive.

What differs from transformers' environment is only what would lose origins: the joining of output, the ``~``
and ``%`` operators, ``str.format``, and filters that build new strings. Text never differs; ``render`` checks.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from memdecay_adapters.langchain.templates.formatting import format_fields, percent
from memdecay_adapters.langchain.templates.json_text import strings_in, tojson
from memdecay_adapters.langchain.templates.marks import insert_marks
from memdecay_adapters.langchain.templates.origin import INHERIT, PREAMBLE, Mark, Origin
from memdecay_adapters.langchain.templates.taint import TaintedStr, concat, join, plain, runs_of, tainted


class EntryDict(dict[str, Any]):
    """A message as the template sees it; it knows its number among the entries."""

    __slots__ = ("_entry",)
    _entry: int


class _Generation(Extension):
    """``{% generation %}`` of transformers: a scope of its own that renders its body."""

    tags = {"generation"}  # noqa: RUF012  # jinja's own attribute

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("body"), [], [], body).set_lineno(lineno)

    @staticmethod
    def body(caller: Macro) -> Any:
        return caller()


class _Generator(CodeGenerator):
    """Compiles ``~`` to the environment's own join."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.str_join((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class TaintEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates so that rendering keeps the origin of every character."""

    code_generator_class = _Generator
    intercepted_binops = frozenset({"%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], finalize=_finalize
        )
        self.binop_table["%"] = _modulo
        self.filters.update(_FILTERS)
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return insert_marks(super()._parse(source, name, filename))

    def concat(self, pieces: Iterable[str]) -> str:
        """Join output; compiled templates call this."""
        return concat(pieces)

    def str_join(self, pieces: Iterable[Any]) -> str:
        """The ``~`` operator."""
        return concat(str(piece) for piece in pieces)

    def mark_iteration(self, value: object, key: int) -> str:
        """Mark the start of an iteration over a message, or over a dict that a template made of messages' strings;
        anything else leaves no mark."""
        entry = value._entry if isinstance(value, EntryDict) else _entry_inside(value)
        return "" if entry is None else tainted("", Mark("iteration", key, entry))

    def mark_exit(self, key: int) -> str:
        """Mark the end of a loop or block."""
        return tainted("", Mark("exit", key))

    def mark_preamble(self, key: int) -> str:
        """Mark the start of the template's own system text."""
        return tainted("", Mark("iteration", key, PREAMBLE))

    def mark_generation(self) -> str:
        """Mark the start of a block that depends on ``add_generation_prompt``."""
        return tainted("", Mark("generation"))

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call from a template; ``", ".join(...)`` and ``"...".replace(...)`` on literals keep origins."""
        if type(obj) is types.BuiltinMethodType and type(obj.__self__) is str:
            if obj.__name__ == "join" and len(args) == 1:
                return join(obj.__self__, args[0])
            if obj.__name__ == "replace" and len(args) >= 2:
                return _replace(obj.__self__, *args)
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``str.format`` in a sandbox, with origins."""
        plain_format = super().wrap_str_format(value)
        if plain_format is None or value.__name__ != "format":
            return plain_format
        return lambda *args, **kwargs: format_fields(self, value.__self__, args, kwargs)


def _entry_inside(value: object) -> int | None:
    """The entry that the first string of a message made anew comes from; None: it is no such dict."""
    if type(value) is not dict or "role" not in value:
        return None
    return next((s.entry for text in strings_in(value) for _, s in runs_of(text) if isinstance(s, Origin)), None)


def _finalize(value: Any) -> Any:
    """Numbers and bools that a template prints are data: they follow what stands before them."""
    return tainted(str(value), INHERIT) if isinstance(value, (int, float)) else value


def _modulo(left: Any, right: Any) -> Any:
    return percent(left, right) if isinstance(left, str) and not hasattr(left, "__html__") else left % right


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


@jinja2.pass_environment
def _join(env: jinja2.Environment, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(env, attribute), value)
    return join(str(d), map(str, value))


def _replace(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    where, what, by, limit = str(text), str(old), str(new), -1 if count is None else count
    if what == "" or not isinstance(by, TaintedStr):
        return where.replace(what, by, limit)
    return join(by, where.split(what, limit))


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    indention, lines = width if isinstance(width, str) else " " * width, concat((s, "\n")).splitlines()
    if blank:
        text = join("\n" + indention, lines)
    else:
        text = join("\n", [line if not line or i == 0 else concat((indention, line)) for i, line in enumerate(lines)])
    return concat((indention, text)) if first else text


def _format_filter(value: str, *args: Any, **kwargs: Any) -> str:
    return percent(str(value), kwargs or args)


def _safe(value: Any) -> Any:
    """Markup escapes its neighbours in ``+``; where that matters the texts differ and the render falls back."""
    return value if isinstance(value, TaintedStr) else jinja2.filters.FILTERS["safe"](value)


def _keeping(name: str) -> Callable[..., Any]:
    """A stock filter whose result takes the origins of its input: all of it where there is one, else run by run where
    that gives the same text. Where it does not, the result has none, and `render` looks for it in the text."""
    stock = jinja2.filters.FILTERS[name]

    def filtered(*args: Any, **kwargs: Any) -> Any:
        place = 1 if getattr(stock, "jinja_pass_arg", None) is not None else 0
        value, result = args[place], stock(*args, **kwargs)
        if not isinstance(value, TaintedStr) or not isinstance(result, str):
            return result
        text = str(result)
        if text == value:
            return value
        sources = {source for length, source in runs_of(value) if length}
        if len(sources) == 1:
            return tainted(text, sources.pop())
        pieces, position = [], 0
        for length, source in runs_of(value):
            piece = plain(value)[position : position + length]
            pieces.append(tainted(str(stock(*args[:place], piece, *args[place + 1 :], **kwargs)), source))
            position += length
        joined = concat(pieces)
        return joined if joined == text else text

    pass_arg = getattr(stock, "jinja_pass_arg", None)
    if pass_arg is not None:
        filtered.jinja_pass_arg = pass_arg  # type: ignore[attr-defined]
    return filtered


_FILTERS: dict[str, Callable[..., Any]] = {
    "tojson": tojson, "join": _join, "replace": _replace, "indent": _indent, "format": _format_filter,
    "safe": _safe,
    **{
        name: _keeping(name)
        for name in (
            "title", "center", "striptags", "e", "escape", "forceescape", "urlencode", "wordwrap", "truncate",
            "capitalize",
        )
    },
}  # fmt: skip
