"""Messages on their way into a template: rearranged for what the template lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from memdecay_adapters.langchain.regions import Label, Part
from memdecay_adapters.langchain.tool_text import tools_text

SYSTEM = Label("system")


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


def alternating(drafts: Sequence[Draft]) -> list[Draft]:
    """Join neighbours of one role, calls of assistants included; results of tools stay apart."""
    result: list[Draft] = []
    for draft in drafts:
        last = result[-1] if result else None
        if last is None or last.role != draft.role or draft.role not in ("user", "assistant") or last.calls:
            result.append(replace(draft, text=list(draft.text)))
            continue
        if last.text and draft.text:
            last.text.append(Part("\n\n", draft.default))
        last.text += draft.text
        last.reasoning = [*last.reasoning, *draft.reasoning]
        last.calls = draft.calls
        last.sources += draft.sources
    return result
