"""What a chat template can do, found out by rendering short probes: a template is judged by its behaviour.

The result decides how messages are written for it; see ``memdecay_adapters.langchain.messages``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

_USER, _SYSTEM, _REPLY = "probeone", "probetwo", "probethree"
_RESULT, _TOOL, _VALUE = "probefour", "probefive", "probesix"
_TEXT, _THOUGHT = "probeseven", "probeeight"
_LONG_ID, _SHORT_ID = "call_0123456789abcdef", "abcdefghi"

RenderProbe = Callable[[list[dict[str, Any]], list[dict[str, Any]] | None], str]
"""(messages, tools) -> text; raises whatever the template raises."""


TextWithCalls = Literal["beside", "before", "turn"]
"""Text beside tool calls comes out; or only in a message of its own before them; or only with a user message between
the two (a template that joins neighbours)."""
GO_ON = "(Go on.)"
"""What that user message says."""


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
    text_with_calls: TextWithCalls
    """How it writes text of a message that also calls tools."""
    empty_replies: bool
    """It takes an assistant message that says nothing."""
    short_call_ids: bool
    """It refuses tool-call ids that are not nine alphanumeric characters."""
    tool_role: bool
    """It writes messages of role ``tool``."""
    orphan_results: bool
    """It writes the result of a call that is no longer there."""
    system_role: bool
    """It writes a leading system message."""
    lone_system: bool
    """It writes a system message where there is nothing else."""
    two_systems: bool
    """It writes two leading system messages."""
    later_systems: bool
    """It writes a system message that is not leading."""
    other_roles: bool
    """It writes messages of roles that are no usual ones."""
    opening_reply: bool
    """It takes a conversation that an assistant message opens."""
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
        system, answer = {"role": "system", "content": _SYSTEM}, {"role": "assistant", "content": _REPLY}
        tool_role = self.shows([user, reply, result], _RESULT, tools=schemas)
        opened = self.text([answer, user])
        return Features(
            tools=tools,
            needs_tool_list=self.no_tools is not None,
            tool_calls=bool(calls),
            json_arguments=bool(calls) and isinstance(calls[0]["tool_calls"][0]["function"]["arguments"], str),
            no_content_with_calls=bool(calls) and calls[0]["content"] is None,
            parallel_calls=len(calls) > 1,
            text_with_calls=self.text_style(user, reply, result if tool_role else None, schemas, known)
            if calls
            else "beside",
            empty_replies=self.text([user, {"role": "assistant", "content": ""}, user], schemas) is not None,
            short_call_ids=short,
            tool_role=tool_role,
            orphan_results=tool_role
            and self.shows([user, result, answer, user], _RESULT, tools=schemas)
            and self.shows([result, answer, user], _RESULT, tools=schemas),
            system_role=self.shows([system, user], _SYSTEM),
            lone_system=self.shows([system], _SYSTEM),
            two_systems=self.shows([system, {"role": "system", "content": _TEXT}, user], _SYSTEM, _TEXT),
            later_systems=self.shows([user, answer, system, user], _SYSTEM)
            and self.shows([user, answer, system], _SYSTEM),
            other_roles=self.shows([{"role": "probecritic", "content": _TEXT}, user], _TEXT),
            opening_reply=opened is not None and _REPLY in opened,
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

    def text_style(
        self,
        user: dict[str, Any],
        calling: dict[str, Any],
        result: dict[str, Any] | None,
        tools: list[dict[str, Any]] | None,
        reasoning_keys: list[str],
    ) -> TextWithCalls:
        """The first style in which text comes out with calls: in the newest turn, in an older one, behind results."""
        results = [] if result is None else [result]
        after = [*results, {"role": "assistant", "content": _REPLY}, user]

        def comes_out(*turn: dict[str, Any]) -> bool:
            return all(
                self.shows([user, *before, *turn, *rest], _TEXT, _VALUE, tools=tools)
                for before in ((), (calling, *results))
                for rest in (results, after)
            )

        beside, text = {**calling, "content": _TEXT}, {"role": "assistant", "content": _TEXT}
        thought = dict.fromkeys(reasoning_keys[:1], _THOUGHT)
        if comes_out(beside) and (not thought or comes_out({**beside, **thought})):
            return "beside"
        if comes_out(text, calling):
            return "before"
        return "turn" if comes_out(text, {"role": "user", "content": GO_ON}, calling) else "beside"

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
