"""Writing tags: what users and nodes say about the region of a message, of a block, or of part of a text."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage

from memdecay_adapters.langchain.tags import TAG_KEY, check_tag, message_text, raw_tags, tag_place, text_hash
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import TagError
from memdecay_agents.regions import REGIONS

Message = TypeVar("Message", bound=BaseMessage)

Named = str | BaseMessage | Iterable[str | BaseMessage]
"""What a tag supersedes, or says is needed: ids of messages or tool calls, or the messages themselves."""


def tag(
    text: str,
    region: str,
    *,
    pinned: bool = False,
    supersedes: Named = (),
    needs_next: Named = (),
    config: MemDecayConfig | None = None,
) -> dict[str, Any]:
    """Return a text content block tagged with a region: the form that survives merging best.

    ``supersedes`` and ``needs_next`` as for `mark`.

    Raises:
        TagError: the region is none of the configuration's (without one: of the seven), or ``supersedes`` or
            ``needs_next`` names a message that has no id.
    """
    entry = _entry(region, pinned, supersedes, needs_next, _known(config), f"tag({text[:24]!r}...)")
    return {"type": "text", "text": text, "extras": {TAG_KEY: entry}}


def mark(
    message: Message,
    what: str | Iterable[tuple[int, int, str]],
    *,
    pinned: bool = False,
    supersedes: Named = (),
    needs_next: Named = (),
    config: MemDecayConfig | None = None,
) -> Message:
    """Return a copy of a message tagged as a whole (a region) or in parts ((start, end, region) of its text).

    Offsets count characters of ``message_text(message)``. Tags of the same kind that were there are replaced.

    Args:
        message: any message.
        what: a region, or (start, end, region) of parts.
        pinned: these tokens are never evicted.
        supersedes: earlier messages that this one replaces, themselves or by id: they stay in the prompt, their
            cache pages go first. A tool call and its result are one unit, by either one's id. An id that no
            earlier message of a prompt has says nothing.
        needs_next: messages, named alike, that the turn after this one will need: with a host tier, what left the
            device comes back before that turn begins. Heard in the newest input, behind the last answer, only.
        config: knows the regions; None: the seven.

    Raises:
        TagError: no message, an unknown region, a span that is empty, overlaps another, or lies beyond the text, or
            a message in ``supersedes`` or ``needs_next`` that has no id.
    """
    if not isinstance(message, BaseMessage):
        raise TagError(
            where=f"mark({str(message)[:24]!r}...)",
            rule=f"it is a {type(message).__name__}, and only messages are marked",
            remedy="Give a LangChain message, or write memdecay_adapters.tag(text, region) into one's content.",
        )
    known, where = _known(config), tag_place(message)
    if isinstance(what, str):
        new, parts = [_entry(what, pinned, supersedes, needs_next, known, where)], False
    else:
        new, parts = _span_entries(message_text(message), what, pinned, supersedes, needs_next, known, where), True
    kept = [raw for raw in raw_tags(message) if isinstance(raw, dict) and ("start" in raw) != parts]
    return message.model_copy(
        update={"additional_kwargs": {**message.additional_kwargs, TAG_KEY: [*kept, *new]}},
    )


def _known(config: MemDecayConfig | None) -> tuple[str, ...]:
    return REGIONS if config is None else config.region_names


def _entry(
    region: str, pinned: bool, supersedes: Named, needs_next: Named, known: Collection[str], where: str
) -> dict[str, Any]:
    entry: dict[str, Any] = {"region": region, "pinned": True} if pinned else {"region": region}
    for field, named in (("supersedes", supersedes), ("needs_next", needs_next)):
        names = [named] if isinstance(named, (str, BaseMessage)) else list(named)
        if names:
            entry[field] = [_id_of(one, where) for one in names]
    check_tag(entry, known, where)
    return entry


def _id_of(named: str | BaseMessage, where: str) -> str:
    """The id that stands for a message: a tool result's call id, else the message's own."""
    name = named if isinstance(named, str) else getattr(named, "tool_call_id", None) or named.id
    if not name:
        rule = f"it names a {type(named).__name__} that has no id"
        raise TagError(where=where, rule=rule, remedy="Give that message an id, or let it go through the graph first.")
    return name


def _span_entries(
    text: str,
    spans: Iterable[tuple[int, int, str]],
    pinned: bool,
    supersedes: Named,
    needs_next: Named,
    known: Collection[str],
    where: str,
) -> list[dict[str, Any]]:
    entries, last_end = [], 0
    for start, end, region in sorted(spans):
        if not (last_end <= start < end <= len(text)):
            rule = f"characters [{start}, {end}) are empty, overlap another span, or end beyond {len(text)}"
            raise TagError(where=where, rule=rule, remedy="Count characters of message_text(message).")
        covered = text[start:end]
        span = {"start": start, "end": end, "length": len(covered), "sha256": text_hash(covered)}
        entries.append({**_entry(region, pinned, supersedes, needs_next, known, where), **span})
        last_end = end
    return entries
