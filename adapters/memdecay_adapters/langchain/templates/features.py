"""What a chat template can do, found out by rendering short probes: a template is judged by its behaviour.

The result decides how messages are written for it; see ``memdecay_adapters.langchain.messages``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_USER, _SYSTEM, _REPLY = "probeone", "probetwo", "probethree"
_RESULT, _TOOL, _VALUE = "probefour", "probefive", "probesix"
_LONG_ID, _SHORT_ID = "call_0123456789abcdef", "abcdefghi"

RenderProbe = Callable[[list[dict[str, Any]], list[dict[str, Any]] | None], str]
"""(messages, tools) -> text; raises whatever the template raises."""


@dataclass(frozen=True, slots=True)
class Features:
    """Abilities of one chat template."""

    tools: bool
    """It writes tool schemas."""
    needs_tool_list: bool
    """Without tools it wants an empty list, and fails on none."""
    tool_calls: bool
    """It writes the ``tool_calls`` of assistant messages."""
    json_arguments: bool
    """It wants the arguments of a call as JSON text, not as a dict."""
    no_content_with_calls: bool
    """It wants ``content: None`` beside tool calls."""
    parallel_calls: bool
    """It writes several calls of one message."""
    empty_replies: bool
    """It takes an assistant message that says nothing."""
    short_call_ids: bool
    """It refuses tool-call ids that are not nine alphanumeric characters."""
    tool_role: bool
    """It writes messages of role ``tool``."""
    system_role: bool
    """It writes a leading system message."""
    repeated_roles: bool
    """It takes two messages of one role in a row."""
    block_content: bool
    """It wants content as a list of text blocks, not as a string."""
    reasoning_key: str | None
    """Field of an assistant message that it reads reasoning from; None: it knows none."""
    default_system: str
    """Text that it writes as system message where the conversation has none."""


def probe_features(source: str, render: RenderProbe) -> Features:
    """Find out what a template can do.

    Args:
        source: the template's text.
        render: renders it.
    """
    return _Probe(source, render).features()


class _Probe:
    def __init__(self, source: str, render: RenderProbe) -> None:
        self.source = source
        self.render = render
        self.no_tools: list[dict[str, Any]] | None = None
        self.block_content = False

    def features(self) -> Features:
        user = {"role": "user", "content": _USER}
        if self.text([user]) is None:
            self.no_tools = []
            if self.text([user]) is None:
                self.no_tools = None
        if _USER not in (self.text([user]) or ""):
            self.block_content = True
            self.block_content = _USER in (self.text([user]) or "")
        tools = self.shows([user], _TOOL, tools=[_tool_schema()])
        calls = self.call_style(user, [_tool_schema()] if tools else self.no_tools)
        schemas = [_tool_schema()] if tools else self.no_tools
        reply = calls[0] if calls else {"role": "assistant", "content": _REPLY}
        short = bool(calls) and calls[0]["tool_calls"][0]["id"] == _SHORT_ID
        result = {"role": "tool", "content": _RESULT, "name": _TOOL, "tool_call_id": _SHORT_ID if short else _LONG_ID}
        known = [key for key in ("reasoning_content", "thinking") if f"message.{key}" in self.source]
        known += ["reasoning_content"] if "reasoning_content" in self.source else []
        return Features(
            tools=tools,
            needs_tool_list=self.no_tools is not None,
            tool_calls=bool(calls),
            json_arguments=bool(calls) and isinstance(calls[0]["tool_calls"][0]["function"]["arguments"], str),
            no_content_with_calls=bool(calls) and calls[0]["content"] is None,
            parallel_calls=len(calls) > 1,
            empty_replies=self.text([user, {"role": "assistant", "content": ""}, user], schemas) is not None,
            short_call_ids=short,
            tool_role=self.shows([user, reply, result], _RESULT, tools=schemas),
            system_role=self.shows([{"role": "system", "content": _SYSTEM}, user], _SYSTEM),
            repeated_roles=self.shows([user, {"role": "user", "content": _REPLY}], _REPLY),
            block_content=self.block_content,
            reasoning_key=known[0] if known else None,
            default_system=self.default_system(user),
        )

    def call_style(self, user: dict[str, Any], tools: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
        """The first way of writing a tool call that comes out: [message], or [message, two-call message]."""
        for call_id in (_LONG_ID, _SHORT_ID):
            for arguments in ({"key": _VALUE}, f'{{"key": "{_VALUE}"}}'):
                for content in ("", None):
                    call = {"id": call_id, "type": "function", "function": {"name": _TOOL, "arguments": arguments}}
                    message = {"role": "assistant", "content": content, "tool_calls": [call]}
                    if not self.shows([user, message], _TOOL + "", _VALUE, tools=tools):
                        continue
                    other = {**call, "function": {"name": _REPLY, "arguments": arguments}}
                    double = {**message, "tool_calls": [call, other]}
                    return [message, double] if self.shows([user, double], _REPLY, tools=tools) else [message]
        return []

    def default_system(self, user: dict[str, Any]) -> str:
        """What stands, without a system message, where the system message would stand."""
        given, without = self.text([{"role": "system", "content": _SYSTEM}, user]), self.text([user])
        if given is None or without is None or not given.find(_SYSTEM) < given.find(_USER):
            return ""
        before, _, rest = given.partition(_SYSTEM)
        after = rest[: rest.find(_USER)]
        end = without.find(after, len(before), without.find(_USER))
        return (
            without[len(before) : end] if given.find(_SYSTEM) >= 0 and without.startswith(before) and end >= 0 else ""
        )

    def shows(self, messages: list[dict[str, Any]], *words: str, tools: list[dict[str, Any]] | None = None) -> bool:
        text = self.text(messages, tools)
        return text is not None and all(word in text for word in words)

    def text(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str | None:
        if self.block_content:
            messages = [{**m, "content": as_blocks(m["content"])} for m in messages]
        try:
            return self.render(messages, tools or self.no_tools)
        except Exception:  # whatever a template raises means that it does not know this
            return None


def as_blocks(content: Any) -> Any:
    """A string as one text block."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


@lru_cache(maxsize=1)
def _tool_schema() -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"key": {"type": "string", "description": "a key"}}}
    return {"type": "function", "function": {"name": _TOOL, "description": "a tool", "parameters": parameters}}
