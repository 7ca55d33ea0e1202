"""Which parsers read a model's answers: the user's word, else what its chat template tells.

A template is judged by what it writes for a tool call, never by the model's name. ``native`` is this package's own
reader and grammar of Hermes-style calls (``<tool_call>{"name": ..., "arguments": ...}``) and ``<think>`` blocks:
what is read is written back to the letter. Other syntaxes are vLLM's parsers' business.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from memdecay_adapters.langchain.templates.features import Features, as_blocks
from memdecay_adapters.langchain.templates.render import ChatTemplate
from memdecay_adapters.langchain.warn import warn_once

AUTO = "auto"
NATIVE = "native"

_TOOL, _KEY, _VALUE = "probetool", "probekey", "probevalue"


class Parsers(NamedTuple):
    """How answers are read."""

    tool: str
    """``native``, or the name of one of vLLM's tool parsers."""
    reasoning: str | None
    """``native``, the name of one of vLLM's reasoning parsers, or None: reasoning is left in the text."""


class _Syntax(NamedTuple):
    mark: str
    """Text that the template writes for a call of ``probetool``."""
    tool: str
    thinking: str | None = None
    """vLLM's reasoning parser for templates with ``<think>``."""
    reasoning: str | None = None
    """vLLM's reasoning parser where the family always reasons, with other tags."""


_SYNTAXES = (
    _Syntax(f'<tool_call>\n{{"name": "{_TOOL}", "arguments": ', NATIVE, NATIVE),
    _Syntax(f"<function={_TOOL}>", "qwen3_xml", "qwen3"),
    _Syntax(f'{{"name": "{_TOOL}", "parameters": ', "llama3_json", "deepseek_r1"),
    _Syntax("<arg_key>", "glm45", "glm45"),
    _Syntax("<\uff5ctool▁calls▁begin\uff5c>", "deepseek_v3", "deepseek_r1"),
    _Syntax("[TOOL_CALLS]", "mistral"),
    _Syntax("<|tool_call_start|>[", "lfm2"),
    _Syntax(f"<|tool_call>call:{_TOOL}{{", "gemma4", None, "gemma4"),
    _Syntax(f"to=functions.{_TOOL}", "openai", None, "openai_gptoss"),
)
_chosen: dict[tuple[str, Features], Parsers] = {}


def choose_parsers(template: ChatTemplate, tool_parser: str, reasoning_parser: str | None) -> Parsers:
    """Settle the parsers; ``auto`` is replaced by what the template tells.

    Args:
        template: the model's chat template.
        tool_parser: ``auto``, ``native``, or a name of vLLM's.
        reasoning_parser: the same, or None.
    """
    if AUTO not in (tool_parser, reasoning_parser):
        return Parsers(tool_parser, reasoning_parser)
    key = (template.source, template.features)
    known = _chosen.get(key)
    if known is None:
        known = _chosen[key] = _from_template(template)
    return Parsers(
        known.tool if tool_parser == AUTO else tool_parser,
        known.reasoning if reasoning_parser == AUTO else reasoning_parser,
    )


def known_parsers(template: ChatTemplate) -> Parsers | None:
    """The parsers that the template tells; None: it writes calls in a syntax that is not known here."""
    thinks = "</think>" in template.source
    if not template.features.tool_calls:  # calls are written by this package then
        return Parsers(NATIVE, NATIVE if thinks else None)
    written = _written_call(template)
    for syntax in _SYNTAXES:
        if syntax.mark in written:
            return Parsers(syntax.tool, syntax.reasoning or (syntax.thinking if thinks else None))
    return None


def _from_template(template: ChatTemplate) -> Parsers:
    known = known_parsers(template)
    if known is not None:
        return known
    thinks, written = "</think>" in template.source, _written_call(template)[-200:]
    warn_once(
        ("tool syntax", template.name),
        f"Chat template of {template.name} writes tool calls in a syntax that is not known here: {written!r}. "
        "Calls are read and forced as <tool_call> JSON; name vLLM's parser for this model with tool_parser=...",
    )
    return Parsers(NATIVE, NATIVE if thinks else None)


def _written_call(template: ChatTemplate) -> str:
    """What the template writes for one call of a tool, as far as it comes after the user's message."""
    features = template.features
    arguments: Any = f'{{"{_KEY}": "{_VALUE}"}}' if features.json_arguments else {_KEY: _VALUE}
    function = {"name": _TOOL, "arguments": arguments}
    call = {"id": "abcdefghi", "type": "function", "function": function}
    content = None if features.no_content_with_calls else ""
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "probeuser"},
        {"role": "assistant", "content": content, "tool_calls": [call]},
    ]
    if features.block_content:
        messages = [{**message, "content": as_blocks(message["content"])} for message in messages]
    schema = {"type": "object", "properties": {_KEY: {"type": "string"}}}
    tool = {"type": "function", "function": {"name": _TOOL, "description": "a tool", "parameters": schema}}
    tools = [tool] if features.tools else [] if features.needs_tool_list else None
    return template.plain(messages, tools, False).rpartition("probeuser")[2]
