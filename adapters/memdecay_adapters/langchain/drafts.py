"""Messages on their way into a template: rearranged for what the template lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from memdecay_adapters.langchain.regions import Label, Part
from memdecay_adapters.langchain.templates.features import GO_ON
from memdecay_adapters.langchain.tool_text import tools_text

SYSTEM = Label("system")
CONVERSATION_BEGINS = "(The conversation begins.)"
"""What a user message says that a template wants before the first answer."""


class DraftCall(NamedTuple):
    """A tool call on its way into a template."""

    id: str
    name: str
    arguments: Any
    label: Label


@dataclass(slots=True)
class Draft:
    """A message on its way into a template, still in parts."""

    role: str
    default: Label
    text: list[Part]
    reasoning: list[Part] = field(default_factory=list)
    calls: list[DraftCall] = field(default_factory=list)
    extra: dict[str, str] = field(default_factory=dict)
    sources: tuple[int, ...] = ()
    """Places of the messages that it was made of."""

    @property
    def says_something(self) -> bool:
        """Whether it has text, reasoning or calls."""
        return bool(self.calls or self.reasoning) or any(part.text.strip() for part in self.text)


def announce_tools(drafts: list[Draft], tools: Sequence[dict[str, Any]], default_system: str) -> None:
    """Write the tools into the system message, or into a new one after the template's own system text."""
    text = tools_text(tools)
    if drafts and drafts[0].role == "system":
        separator = "\n\n" if drafts[0].text else ""
        drafts[0].text.append(Part(separator + text, SYSTEM))
        return
    before = default_system + "\n\n" if default_system else ""
    drafts.insert(0, Draft("system", SYSTEM, [Part(before + text, SYSTEM)]))


def without_system(drafts: Sequence[Draft]) -> list[Draft]:
    """System texts open the next user message; at the end they are user messages of their own."""
    result: list[Draft] = []
    waiting: list[Part] = []
    sources: tuple[int, ...] = ()
    for draft in drafts:
        if draft.role == "system":
            waiting += [*draft.text, Part("\n\n", draft.default)]
            sources += draft.sources
            continue
        if waiting and draft.role == "user":
            draft = replace(draft, text=[*waiting, *draft.text], sources=sources + draft.sources)
        elif waiting:
            result.append(Draft("user", waiting[-1].label, waiting[:-1], sources=sources))
        waiting, sources = [], ()
        result.append(draft)
    if waiting:
        result.append(Draft("user", waiting[-1].label, waiting[:-1], sources=sources))
    return result


def leading_system_only(drafts: Sequence[Draft]) -> list[Draft]:
    """Leading system texts become one message; later ones go as `without_system` puts them."""
    count = next((n for n, draft in enumerate(drafts) if draft.role != "system"), len(drafts))
    if not count:
        return without_system(drafts)
    first = replace(drafts[0], text=list(drafts[0].text))
    for draft in drafts[1:count]:
        if first.text and draft.text:
            first.text.append(Part("\n\n", draft.default))
        first.text += draft.text
        first.sources += draft.sources
    return [first, *without_system(drafts[count:])]


def opened_by_user(drafts: Sequence[Draft]) -> list[Draft]:
    """A user message that says so stands before an assistant message that opens the conversation."""
    first = next((n for n, draft in enumerate(drafts) if draft.role != "system"), None)
    if first is None or drafts[first].role != "assistant":
        return list(drafts)
    opening = Draft("user", SYSTEM, [Part(CONVERSATION_BEGINS, SYSTEM)])
    return [*drafts[:first], opening, *drafts[first:]]


def calls_in_turns(drafts: Sequence[Draft]) -> list[Draft]:
    """A user message stands between neighbours of the assistant of which one calls tools and the other does not."""
    result: list[Draft] = []
    for draft in drafts:
        last = result[-1] if result else None
        if last and last.role == draft.role == "assistant" and bool(last.calls) != bool(draft.calls):
            result.append(Draft("user", draft.default, [Part(GO_ON, draft.default)]))
        result.append(draft)
    return result


def alternating(drafts: Sequence[Draft], *, text_with_calls: bool = True) -> list[Draft]:
    """Join neighbours of one role, calls of assistants included; results of tools stay apart.

    Args:
        drafts: the messages.
        text_with_calls: False: text and calls are not joined.
    """
    result: list[Draft] = []
    for draft in drafts:
        last = result[-1] if result else None
        apart = last is not None and bool(draft.calls and last.text) and not text_with_calls
        if last is None or last.role != draft.role or draft.role not in ("user", "assistant") or last.calls or apart:
            result.append(replace(draft, text=list(draft.text)))
            continue
        if last.text and draft.text:
            last.text.append(Part("\n\n", draft.default))
        last.text += draft.text
        last.reasoning = [*last.reasoning, *draft.reasoning]
        last.calls = draft.calls
        last.sources += draft.sources
    return result
