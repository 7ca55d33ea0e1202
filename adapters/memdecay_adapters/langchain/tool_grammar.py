r"""The grammar of an answer: which tool calls, JSON or free text the model may write, token by token.

Calls are written as Hermes-style chat templates write them, so that the next turn's prompt repeats the very
tokens that were generated::

    <tool_call>
    {"name": "search", "arguments": {"query": "..."}}
    </tool_call>

The model chooses; nothing is injected. The grammar (an xgrammar structural tag) only forbids what no bound
tool accepts. JSON is held to the spelling of ``json.dumps`` (one blank after "," and ":"), which also keeps a
small model from writing blanks without end.

    none       free text
    auto       free text, then calls or the end; nothing after the calls
    required   calls only, of the tools that may be called

Where reasoning is read, a forced call or JSON may follow a ``<think>`` block (`after_reasoning`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from memdecay_adapters.langchain.think_reader import THINK_CLOSE, THINK_OPEN
from memdecay_adapters.langchain.tool_choice import ToolChoice, ToolSchema
from memdecay_agents.errors import ConfigError

CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"

_Format = dict[str, Any]


def answer_grammar(
    tools: Sequence[ToolSchema], choice: ToolChoice, response_schema: Mapping[str, Any] | None = None
) -> str | None:
    """Return the structural tag for an answer, as JSON, or None where any text will do.

    Args:
        tools: the bound tools.
        choice: which of them may or must be called.
        response_schema: JSON schema of the answer. Beside callable tools the answer is either calls or
            this JSON, without free text.

    Raises:
        ConfigError: a schema that xgrammar cannot turn into a grammar; it names the tool.
    """
    callable_tools = [tool for tool in tools if tool.name in choice.names] if choice.mode != "none" else []
    calls = [_call_format(tool) for tool in callable_tools]
    answer = None if response_schema is None else _json_format(response_schema, "response_format")
    if not calls:
        return None if answer is None else _tag(answer)
    if choice.mode == "required":
        return _tag(_only_calls(calls, choice.single))
    if answer is not None:
        return _tag({"type": "or", "elements": [_only_calls(calls, choice.single), answer]})
    return _tag(_text_then_calls(calls, choice.single))


def after_reasoning(answer: Mapping[str, Any], opened: bool) -> dict[str, Any]:
    """A format that lets the model reason before the answer: it must close a block that the prompt has opened, and
    may open one otherwise."""
    block: _Format = {
        "type": "sequence",
        "elements": [
            {
                "type": "tag",
                "begin": "" if opened else THINK_OPEN,
                "content": {"type": "any_text"},
                "end": THINK_CLOSE,
            },
            {"type": "regex", "pattern": r"\n{0,2}"},
        ],
    }
    first = block if opened else {"type": "optional", "content": block}
    return {"type": "sequence", "elements": [first, dict(answer)]}


def _only_calls(calls: list[_Format], single: bool) -> _Format:
    return {
        "type": "tags_with_separator",
        "tags": calls,
        "separator": "\n",
        "at_least_one": True,
        "stop_after_first": single,
    }


def _text_then_calls(calls: list[_Format], single: bool) -> _Format:
    first: _Format = {
        "type": "triggered_tags",
        "triggers": [CALL_OPEN],
        "tags": calls,
        "stop_after_first": True,
    }
    if single:
        return first
    another = [{"type": "const_string", "value": "\n"}, {"type": "or", "elements": calls}]
    return {
        "type": "sequence",
        "elements": [first, {"type": "star", "content": {"type": "sequence", "elements": another}}],
    }


def _call_format(tool: ToolSchema) -> _Format:
    return {
        "type": "tag",
        "begin": f'{CALL_OPEN}\n{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "arguments": ',
        "content": _json_format(tool.parameters, f"tool {tool.name!r}"),
        "end": "}\n" + CALL_CLOSE,
    }


def _json_format(schema: Mapping[str, Any], where: str) -> _Format:
    """JSON of this schema in the spelling of ``json.dumps``. References are resolved by xgrammar."""
    import xgrammar

    try:
        grammar = xgrammar.Grammar.from_json_schema(json.dumps(schema), any_whitespace=False, separators=(", ", ": "))
    except Exception as error:  # xgrammar raises RuntimeError, or an exception of its own by kind
        raise ConfigError(
            where=where,
            rule=f"its JSON schema cannot be turned into a grammar ({str(error).strip().splitlines()[-1]})",
            remedy="Simplify the schema: JSON Schema with local $ref only.",
        ) from error
    return {"type": "grammar", "grammar": str(grammar)}


def _tag(answer: _Format) -> str:
    return json.dumps({"type": "structural_tag", "format": answer})
