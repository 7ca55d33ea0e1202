"""Which region each part of a LangChain message belongs to; the first rule that matches wins.

    1  tag of a block                     4  ToolMessage of ``write_todos``         -> plan
    2  tag of the message                 5  ToolMessage with Documents as artifact -> retrieval
    3  ``lc_source == "summarization"``   6  hand-off messages                      -> tool_in, tool_out
       -> scratchpad (configurable)       7  any other ToolMessage                  -> tool_out
    8  SystemMessage -> system            10 HumanMessage                           -> user
    9  AIMessage: arguments of tool calls -> tool_in, reasoning and <think> -> scratchpad,
       other text -> scratchpad (a wrapped node's ``output_region`` arrives as a tag, rule 2)

A ToolMessage of status "error" is tool_out, whatever its tool (4, 5), unless a tag or ``tool_regions`` names it.
In an AIMessage a tag of the message stands for its text only: calls and reasoning keep their own regions.
What one message says about another (a newer plan, a call and its result) is settled in ``units``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from memdecay_adapters.langchain.blocks import TEXT, split_blocks
from memdecay_adapters.langchain.region_rules import DEFAULT_RULES, RegionRules
from memdecay_adapters.langchain.tags import (
    Tag,
    TagErrorHandler,
    fresh_spans,
    parse_tag,
    read_tags,
    warn_tag_error,
)
from memdecay_agents.spans import SpanFlag


class Label(NamedTuple):
    """Region and flags of a piece of text."""

    region: str
    flags: SpanFlag = SpanFlag.NONE

    def with_flags(self, flags: SpanFlag) -> Label:
        """The same region with flags added."""
        return self if flags in self.flags else Label(self.region, self.flags | flags)


class Part(NamedTuple):
    """A piece of text and its label."""

    text: str
    label: Label


@dataclass(frozen=True, slots=True)
class MessageParts:
    """A message cut into parts with labels."""

    text: tuple[Part, ...]
    """Its text blocks, cut at region borders; joined they are ``message_text``."""
    reasoning: tuple[Part, ...]
    """Its reasoning blocks, and ``additional_kwargs["reasoning_content"]``."""
    calls: tuple[Label, ...]
    """Label of each of its ``tool_calls``, in their order."""
    broken_calls: Label
    """Label of its ``invalid_tool_calls``."""
    default: Label
    """Label of what a template writes around the message: its header and footer."""
    supersedes: tuple[str, ...] = ()
    """Ids of messages and tool calls that its tags say it replaces."""


def infer_parts(
    message: BaseMessage,
    known: Collection[str],
    *,
    rules: RegionRules = DEFAULT_RULES,
    on_tag_error: TagErrorHandler = warn_tag_error,
) -> MessageParts:
    """Cut a message into parts and name the region of each.

    Args:
        message: any LangChain message.
        known: region names of the configuration; a tag with another one goes to ``on_tag_error``.
        rules: what inference may be told.
        on_tag_error: called for a tag that cannot be used; if it returns, the region is inferred.
    """
    where = type(message).__name__
    tags = read_tags(message, known, on_tag_error)
    whole = _message_tag(tags)
    base = _label(whole) if whole else Label(_inferred(message, rules))
    blocks = split_blocks(message.content)
    text = "".join(block.text for block in blocks if block.kind == TEXT)

    canvas = _Canvas(text, base)
    if isinstance(message, AIMessage):
        for start, end in _thinking(text):
            canvas.paint(start, end, Label("scratchpad", base.flags))
    if whole is None:
        for rule in rules.between:
            for start, end in rule.found_in(text) if rule.reads(message) else ():
                canvas.paint(start, end, Label(rule.region))
    reasoning, position, used = _given_reasoning(message, base), 0, [whole] if whole else []
    for block in blocks:
        tag = parse_tag(block.tag, known, on_tag_error, where) if block.tag is not None else None
        if tag is not None:
            used.append(tag)
        if block.kind != TEXT:
            reasoning.append(Part(block.text, _label(tag) if tag else Label("scratchpad", base.flags)))
            continue
        if tag is not None:
            canvas.paint(position, position + len(block.text), _label(tag))
        position += len(block.text)
    for span_tag in fresh_spans(tags, text, on_tag_error, where):
        used.append(span_tag)
        if span_tag.span is not None:
            canvas.paint(span_tag.span.start, span_tag.span.end, _label(span_tag))
    call = Label("tool_in", base.flags)
    return MessageParts(
        text=canvas.parts(),
        reasoning=tuple(part for part in reasoning if part.text),
        calls=(call,) * len(getattr(message, "tool_calls", ())),
        broken_calls=call,
        default=base,
        supersedes=tuple(name for tag in used for name in tag.supersedes),
    )


class _Canvas:
    """A text whose stretches are painted with labels; later paint covers earlier."""

    def __init__(self, text: str, base: Label) -> None:
        self.text = text
        self.strokes = [(0, len(text), base)]

    def paint(self, start: int, end: int, label: Label) -> None:
        self.strokes.append((start, end, label))

    def parts(self) -> tuple[Part, ...]:
        cuts = sorted({edge for start, end, _ in self.strokes for edge in (start, end)})
        parts = []
        for start, end in pairwise(cuts):
            label = next(label for a, b, label in reversed(self.strokes) if a <= start and end <= b)
            parts.append(Part(self.text[start:end], label))
        return tuple(parts)


def _message_tag(tags: Sequence[Tag]) -> Tag | None:
    """The tag of the whole message: the latest one, a node's stamp only where there is no other."""
    whole = [tag for tag in tags if tag.span is None]
    explicit = [tag for tag in whole if not tag.from_node]
    return next(reversed(explicit or whole), None)


def _label(tag: Tag) -> Label:
    return Label(tag.region, SpanFlag.PINNED if tag.pinned else SpanFlag.NONE)


def _inferred(message: BaseMessage, rules: RegionRules) -> str:
    if message.additional_kwargs.get("lc_source") == "summarization":
        return rules.summarization_region
    if isinstance(message, (ToolMessage, FunctionMessage)):
        return _tool_region(message, rules)
    if _metadata(message, "__handoff_destination") or _metadata(message, "__is_handoff_back"):
        return "tool_in"
    if isinstance(message, SystemMessage):
        return "system"
    if isinstance(message, HumanMessage):
        return "user"
    if isinstance(message, ChatMessage):
        roles = {"system": "system", "developer": "system", "user": "user", "tool": "tool_out"}
        return roles.get(message.role, "scratchpad")
    return "scratchpad"


def _tool_region(message: ToolMessage | FunctionMessage, rules: RegionRules) -> str:
    name = message.name or ""
    if name in rules.tool_regions:
        return rules.tool_regions[name]
    if getattr(message, "status", None) == "error":
        return "tool_out"
    if name in rules.plan_tools:
        return "plan"
    artifact = getattr(message, "artifact", None)
    if isinstance(artifact, (list, tuple)) and artifact and all(isinstance(a, Document) for a in artifact):
        return "retrieval"
    return "tool_out"


def _metadata(message: BaseMessage, key: str) -> Any:
    return message.response_metadata.get(key) or message.additional_kwargs.get(key)


def _given_reasoning(message: BaseMessage, base: Label) -> list[Part]:
    given = message.additional_kwargs.get("reasoning_content")
    if isinstance(message, AIMessage) and isinstance(given, str):
        return [Part(given, Label("scratchpad", base.flags))]
    return []


def _thinking(text: str) -> list[tuple[int, int]]:
    """Stretches of ``<think>`` in a text, tags included; either tag may be missing."""
    if "<think>" not in text and "</think>" not in text:
        return []
    found = [match.span() for match in re.finditer(r"<think>.*?(?:</think>|\Z)", text, re.DOTALL)]
    first_close = text.find("</think>")
    if first_close >= 0 and not any(start <= first_close for start, _ in found):
        found.insert(0, (0, first_close + len("</think>")))
    return found
