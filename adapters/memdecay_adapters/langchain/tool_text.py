"""Tools as plain text, in the style of Hermes and Qwen, for templates that know no tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_HEADING = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)
_INSTRUCTION = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


def tools_text(tools: Sequence[dict[str, Any]]) -> str:
    """System text that announces tools (OpenAI schemas), one JSON object a line."""
    return _HEADING + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools) + _INSTRUCTION


def call_text(name: str, arguments: Any) -> str:
    """A tool call as the assistant writes it."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False, default=str)
    return f"<tool_call>\n{body}\n</tool_call>"


def broken_call_text(text: str) -> str:
    """A tool call whose JSON could not be read, as the assistant wrote it; raw text with its tag stays as it is."""
    if text.startswith("<tool_call>"):
        return text
    return f"<tool_call>\n{text}\n</tool_call>"


def response_text(content: str) -> tuple[str, str, str]:
    """A tool's result inside a user message: (opening, content, closing)."""
    return "<tool_response>\n", content, "\n</tool_response>"
