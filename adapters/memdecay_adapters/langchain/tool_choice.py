"""Bound tools and which of them the model must, may or must not call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from langchain_core.utils.function_calling import convert_to_openai_tool

from memdecay_agents.errors import ConfigError

ToolLike = Mapping[str, Any] | type | Callable[..., Any] | Any
"""What ``bind_tools`` takes: an OpenAI schema, a pydantic class, a TypedDict, a function, a ``BaseTool``."""

RawToolChoice = str | bool | Mapping[str, Any] | None
"""None, "auto", "none", "any", "required", True, a tool's name, or OpenAI's dict with a name."""


class ToolChoice(NamedTuple):
    """A tool choice that was checked against the bound tools."""

    mode: Literal["none", "auto", "required"]
    names: tuple[str, ...]
    """Tools that may be called."""
    single: bool = False
    """At most one call."""


class ToolSchema(NamedTuple):
    """A tool as the grammar needs it."""

    name: str
    parameters: dict[str, Any]
    """JSON schema of the arguments, an object."""


def openai_tools(tools: Sequence[ToolLike], strict: bool | None = None) -> list[dict[str, Any]]:
    """Convert tools to OpenAI function schemas, the form that templates and the grammar read.

    One tool that is given twice, in whatever form, is bound once.

    Raises:
        ConfigError: a tool that a provider runs on its side, or two different tools of one name.
    """
    kept: dict[str, dict[str, Any]] = {}
    for tool in (convert_to_openai_tool(tool, strict=strict) for tool in tools):
        if tool.get("type") != "function" or "function" not in tool:
            raise ConfigError(
                where=f"tool {tool.get('name') or tool.get('type')!r}",
                rule="only function tools can be bound: no provider runs tools for this model",
                remedy="Bind a function, a pydantic class or a BaseTool.",
            )
        name = tool["function"]["name"]
        if _untitled(kept.setdefault(name, tool)) != _untitled(tool):
            raise ConfigError(
                where=f"tool {name!r}", rule="two tools have this name", remedy="Give each tool its own name."
            )
    return list(kept.values())


def _untitled(schema: Any) -> Any:
    """A schema without its titles, which pydantic adds and LangChain drops."""
    if isinstance(schema, Mapping):
        return {k: _untitled(v) for k, v in schema.items() if k != "title" or not isinstance(v, str)}
    return [_untitled(item) for item in schema] if isinstance(schema, list) else schema


def tool_schemas(tools: Sequence[Mapping[str, Any]]) -> list[ToolSchema]:
    """Return name and argument schema of each OpenAI tool; one without parameters takes an empty object."""
    empty = {"type": "object", "properties": {}}
    return [ToolSchema(t["function"]["name"], t["function"].get("parameters") or empty) for t in tools]


def check_tool_choice(
    choice: RawToolChoice, names: Sequence[str], *, parallel: bool | None = None, where: str = "tool_choice"
) -> ToolChoice:
    """Read a tool choice.

    Args:
        choice: see `RawToolChoice`. A tool's name allows exactly one call, of that tool.
        names: the bound tools.
        parallel: whether one answer may hold several calls. None: several where the model may also write
            text, one where a call is forced, since nothing but its own judgement would end the list.
        where: for the error.

    Raises:
        ConfigError: a name that is not bound, a call required where no tool is bound, or another type.
    """
    known = tuple(names)
    if isinstance(choice, Mapping):
        function = choice.get("function")
        choice = function.get("name") if isinstance(function, Mapping) else choice.get("name")
        if not isinstance(choice, str):
            raise _unreadable(where, "a dict names its tool under ['function']['name']", known)
    if choice is True or choice in ("any", "required"):
        if not known:
            raise _unreadable(where, "a call is required and no tool is bound", known)
        return ToolChoice("required", known, parallel is not True)
    if choice is None or choice == "auto":
        return ToolChoice("auto" if known else "none", known, parallel is False)
    if choice is False or choice == "none":
        return ToolChoice("none", known)
    if isinstance(choice, str) and choice in known:
        return ToolChoice("required", (choice,), True)
    raise _unreadable(where, f"{choice!r} is no bound tool", known)


def _unreadable(where: str, rule: str, names: tuple[str, ...]) -> ConfigError:
    return ConfigError(
        where=where,
        rule=rule,
        remedy="Use 'auto', 'none', 'any', 'required' or the name of a bound tool "
        f"({', '.join(map(repr, names)) or 'none is bound'}).",
    )
