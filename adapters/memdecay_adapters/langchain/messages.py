"""LangChain messages as the message dicts of a chat template, with labels on every string.

A template that lacks something gets it in another form (``Features`` says what it has):

    tools without support         announced in the system message, in Hermes style
    tool calls without support    text ``<tool_call>...</tool_call>`` in the assistant's content
    tool results without support  a user message ``<tool_response>...</tool_response>``
    results without their call    as tool results without support
    no system role                the system text opens the next user message
    no later system messages      leading ones become one, later ones open the next user message
    no other roles                "developer" is a system message, any other a user message
    strict alternation            neighbours of one role become one message
    one call a message            several calls become several assistant messages
    no text beside calls          an assistant message with the text, then one with the calls; a user message
                                  "(Go on.)" between them where the template joins the two
    no empty answers              an assistant message that says nothing is left out
    no answer first               a user message "(The conversation begins.)" before it
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from memdecay_adapters.langchain.drafts import (
    SYSTEM,
    Draft,
    DraftCall,
    alternating,
    announce_tools,
    calls_in_turns,
    leading_system_only,
    opened_by_user,
    without_system,
)
from memdecay_adapters.langchain.region_rules import DEFAULT_RULES, RegionRules
from memdecay_adapters.langchain.regions import Label, MessageParts, Part, infer_parts
from memdecay_adapters.langchain.tags import TagErrorHandler, warn_tag_error
from memdecay_adapters.langchain.templates.environment import EntryDict
from memdecay_adapters.langchain.templates.features import Features, as_blocks
from memdecay_adapters.langchain.templates.origin import PREAMBLE, Origin
from memdecay_adapters.langchain.templates.taint import concat, plain, tainted
from memdecay_adapters.langchain.tool_text import broken_call_text, call_text, response_text
from memdecay_adapters.langchain.units import orphan_results, settle_units, with_tool_names
from memdecay_agents.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages and tools for a template, with origins and without."""

    entries: list[EntryDict]
    """Message dicts whose strings know their origin."""
    defaults: list[Label]
    """Default label of each entry."""
    tools: list[dict[str, Any]] | None
    plain_messages: list[dict[str, Any]]
    """What goes to ``tokenizer.apply_chat_template``."""
    plain_tools: list[dict[str, Any]] | None
    sources: list[tuple[int, ...]]
    """Places of the messages that each entry was made of."""


_USUAL_ROLES = frozenset({"system", "user", "assistant", "tool"})


def convert_messages(
    messages: Sequence[BaseMessage],
    features: Features,
    *,
    tools: Sequence[dict[str, Any]] | None,
    known: Sequence[str],
    rules: RegionRules = DEFAULT_RULES,
    on_tag_error: TagErrorHandler = warn_tag_error,
) -> Conversation:
    """Convert a conversation for a template with these features.

    Args:
        messages: LangChain messages.
        features: what the template can do.
        tools: OpenAI tool schemas; None or empty: no tools.
        known: region names of the configuration.
        rules: what region inference may be told.
        on_tag_error: called for tags that cannot be used.

    Raises:
        UnsupportedError: a content block that is no text, or a kind of message that is no conversation.
    """
    named = with_tool_names(messages)
    inferred = [infer_parts(message, known, rules=rules, on_tag_error=on_tag_error) for message in named]
    drafts: list[Draft] = []
    orphans = set() if features.orphan_results else orphan_results(messages)
    for place, (message, parts) in enumerate(zip(messages, settle_units(named, inferred, rules), strict=True)):
        written = replace(features, tool_role=False) if place in orphans else features
        drafts.extend(replace(draft, sources=(place,)) for draft in _drafts(message, parts, written))
    if tools and not features.tools:
        announce_tools(drafts, tools, features.default_system)
    if not features.system_role:
        drafts = without_system(drafts)
    elif not (features.two_systems and features.later_systems):
        drafts = leading_system_only(drafts)
    if not features.lone_system and all(draft.role == "system" for draft in drafts):
        drafts = without_system(drafts)
    if not features.opening_reply:
        drafts = opened_by_user(drafts)
    if not features.repeated_roles:
        drafts = alternating(drafts, text_with_calls=features.text_with_calls == "beside")
    if features.text_with_calls == "turn":
        drafts = calls_in_turns(drafts)
    entries = [_entry(draft, number, features) for number, draft in enumerate(drafts)]
    given = list(tools) if tools and features.tools else ([] if features.needs_tool_list else None)
    return Conversation(
        entries=entries,
        defaults=[draft.default for draft in drafts],
        tools=_taint(given, Origin(PREAMBLE, SYSTEM)),
        plain_messages=[_plain(entry) for entry in entries],
        plain_tools=given,
        sources=[draft.sources for draft in drafts],
    )


def _drafts(message: BaseMessage, parts: MessageParts, features: Features) -> list[Draft]:
    draft = Draft(_role(message, features), parts.default, list(parts.text))
    if isinstance(message, (ToolMessage, FunctionMessage)):
        return [_tool_result(message, draft, features)]
    if not isinstance(message, AIMessage):
        return [draft]
    if features.reasoning_key is not None:
        draft.reasoning = list(parts.reasoning)
    elif parts.reasoning:
        label = parts.reasoning[0].label
        opening = Part("<think>\n", parts.default)  # some generation prompts end with it: it is the answer's header
        draft.text[:0] = [opening, *parts.reasoning, Part("\n</think>\n\n", label)]
    for broken in message.invalid_tool_calls:
        _append_block(draft, Part(broken_call_text(broken.get("args") or ""), parts.broken_calls))
    if not features.tool_calls:
        for call, label in zip(message.tool_calls, parts.calls, strict=True):
            _append_block(draft, Part(call_text(call["name"], call["args"]), label))
        return [draft] if features.empty_replies or draft.says_something else []
    calls = [
        DraftCall(_call_id(call["id"], features), call["name"], call["args"], label)
        for call, label in zip(message.tool_calls, parts.calls, strict=True)
    ]
    draft.calls = calls
    if not calls:
        return [draft] if features.empty_replies or draft.says_something else []
    before: list[Draft] = []
    if features.text_with_calls != "beside" and any(part.text.strip() for part in draft.text):
        before.append(replace(draft, reasoning=[], calls=[]))  # reasoning stays with the calls: templates keep it there
        draft.text = []
    if len(calls) > 1 and not features.parallel_calls:
        draft.calls = calls[:1]
        return [*before, draft, *(replace(draft, text=[], reasoning=[], calls=[call]) for call in calls[1:])]
    return [*before, draft]


def _tool_result(message: ToolMessage | FunctionMessage, draft: Draft, features: Features) -> Draft:
    if not features.tool_role:
        opening, _, closing = response_text("")
        draft.role = "user"
        draft.text = [Part(opening, draft.default), *draft.text, Part(closing, draft.default)]
        return draft
    draft.extra = {"tool_call_id": _call_id(getattr(message, "tool_call_id", ""), features)}
    if message.name:
        draft.extra["name"] = message.name
    return draft


def _append_block(draft: Draft, part: Part) -> None:
    if draft.text:
        part = part._replace(text="\n" + part.text)
    draft.text.append(part)


def _role(message: BaseMessage, features: Features) -> str:
    if isinstance(message, ChatMessage):
        if features.other_roles or message.role in _USUAL_ROLES:
            return message.role
        return "system" if message.role == "developer" else "user"
    for kind, role in (
        (HumanMessage, "user"), (AIMessage, "assistant"), (SystemMessage, "system"),
        (ToolMessage, "tool"), (FunctionMessage, "tool"),
    ):  # fmt: skip
        if isinstance(message, kind):
            return role
    raise UnsupportedError(
        where=f"a {type(message).__name__} in a prompt",
        rule="only human, AI, system, tool and chat messages can be written into a prompt",
        remedy="Remove it before the model is called.",
    )


def _call_id(given: str | None, features: Features) -> str:
    """The id of a call; for templates that want nine characters, nine that stand for it."""
    given = given or ""
    if not features.short_call_ids or (len(given) == 9 and given.isascii() and given.isalnum()):
        return given
    return hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest()[:9]


def _entry(draft: Draft, number: int, features: Features) -> EntryDict:
    entry = EntryDict(role=draft.role)
    entry._entry = number
    content = _join_parts(draft.text, number)
    no_content = draft.calls and not content and features.no_content_with_calls
    entry["content"] = None if no_content else as_blocks(content) if features.block_content else content
    if draft.reasoning and features.reasoning_key is not None:
        entry[features.reasoning_key] = _join_parts(draft.reasoning, number)
    if draft.calls:
        entry["tool_calls"] = [_call_entry(call, number, features) for call in draft.calls]
    for key, value in draft.extra.items():
        entry[key] = tainted(value, Origin(number, draft.default))
    return entry


def _call_entry(call: DraftCall, number: int, features: Features) -> dict[str, Any]:
    origin = Origin(number, call.label)
    arguments = json_arguments(call.arguments) if features.json_arguments else call.arguments
    function = {"name": tainted(call.name, origin), "arguments": _taint(arguments, origin)}
    return {"id": tainted(call.id, origin), "type": "function", "function": function}


def json_arguments(arguments: Any) -> str:
    """Arguments of a call as JSON text."""
    return json.dumps(arguments, ensure_ascii=False, default=str)


def _join_parts(parts: Sequence[Part], number: int) -> str:
    return concat([tainted("", Origin(number, SYSTEM)), *(tainted(p.text, Origin(number, p.label)) for p in parts)])


def _taint(value: Any, origin: Origin) -> Any:
    if isinstance(value, str):
        return tainted(value, origin)
    if isinstance(value, dict):
        return {_taint(key, origin): _taint(item, origin) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_taint(item, origin) for item in value]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
