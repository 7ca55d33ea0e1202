"""Tags: what a user or a node says about the region of a message, of a block, or of part of a text.

A message carries tags as plain JSON dicts in ``additional_kwargs["memdecay"]``, always a LIST (lists append
when chunks or messages merge; bare strings would be concatenated). A text block carries one in
``extras["memdecay"]``. Fields of a tag::

    {"region": "plan"}                                          the whole message or block
    {"region": "plan", "source": "node"}                        stamped by a wrapped node; yields to any other
    {"region": "retrieval", "start": 9, "end": 40,              characters [9, 40) of ``message_text``,
     "length": 31, "sha256": "0f1e2d3c4b5a6978"}                while they still have this length and hash
    {..., "pinned": true}                                       these tokens are never evicted
    {..., "supersedes": ["call_7", "msg-3"]}                    earlier messages (by id) and tool calls with their
                                                                results (by call id) that this replaces
    {..., "needs_next": ["call_7", "msg-3"]}                    in a turn's new input: what its next turn will need,
                                                                named alike; it comes back from host memory then
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage

from memdecay_adapters.langchain.blocks import TEXT, split_blocks
from memdecay_adapters.langchain.warn import warn_once
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import TagError

TAG_KEY = "memdecay"
"""Carrier of tags in ``additional_kwargs`` and in a block's ``extras``."""

HASH_DIGITS = 16
"""Hexadecimal digits of the SHA-256 that a sub-message tag carries."""

_SPAN_FIELDS = frozenset({"start", "end", "length", "sha256"})
_FIELDS = frozenset({"region", "source", "pinned", "supersedes", "needs_next"}) | _SPAN_FIELDS


class TextSpan(NamedTuple):
    """Characters [start, end) of ``message_text`` that a sub-message tag describes."""

    start: int
    end: int
    length: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Tag:
    """One tag that was read and is well-formed."""

    region: str
    pinned: bool = False
    from_node: bool = False
    span: TextSpan | None = None
    supersedes: tuple[str, ...] = ()
    """Ids of messages, and of tool calls with their results, that stand earlier and are replaced."""
    needs_next: tuple[str, ...] = ()
    """Such ids that the next turn will need."""


TagErrorHandler = Callable[[TagError], None]
"""What to do about a tag that cannot be used: raise, or warn and go on without it."""


def raise_tag_error(error: TagError) -> None:
    """Handler that refuses."""
    raise error


def warn_tag_error(error: TagError) -> None:
    """Handler that lets a run go on: one warning for each kind of problem, then inference."""
    warn_once(("tag", error.remedy), f"{error} The region is inferred instead; later cases are not reported.")


def message_text(message: BaseMessage) -> str:
    """Text of a message: its text blocks joined without a separator. Offsets of tags count its characters."""
    return "".join(block.text for block in split_blocks(message.content) if block.kind == TEXT)


def read_tags(message: BaseMessage, known: Collection[str], on_error: TagErrorHandler) -> list[Tag]:
    """Read the tags of a message, in their order; those that cannot be used go to ``on_error``."""
    return [t for raw in raw_tags(message) if (t := parse_tag(raw, known, on_error, tag_place(message)))]


def parse_tag(raw: object, known: Collection[str], on_error: TagErrorHandler, where: str) -> Tag | None:
    """Check one raw tag; return None where it cannot be used and ``on_error`` returned."""
    try:
        return check_tag(raw, known, where)
    except TagError as error:
        on_error(error)
        return None


def fresh_spans(tags: Iterable[Tag], text: str, on_error: TagErrorHandler, where: str) -> list[Tag]:
    """Return the sub-message tags that still match the text; stale ones go to ``on_error``."""
    fresh = []
    for tag_ in tags:
        if tag_.span is None:
            continue
        start, end, length, digest = tag_.span
        if end - start == length and end <= len(text) and text_hash(text[start:end]) == digest:
            fresh.append(tag_)
            continue
        rule = f"the tag of characters [{start}, {end}) as '{tag_.region}' does not match the text any more"
        remedy = "The text was edited after it was tagged: tag it again, or tag blocks with tag(text, region)."
        on_error(TagError(where=where, rule=rule, remedy=remedy))
    return fresh


def validate_tags(messages: Sequence[BaseMessage], config: MemDecayConfig) -> None:
    """Check every tag of every message, on messages and on blocks.

    Raises:
        TagError: an unknown region, a malformed tag, or a sub-message tag that does not match its text.
    """
    for message in messages:
        tags = read_tags(message, config.region_names, raise_tag_error)
        fresh_spans(tags, message_text(message), raise_tag_error, tag_place(message))
        for block in split_blocks(message.content):
            if block.tag is not None:
                parse_tag(block.tag, config.region_names, raise_tag_error, tag_place(message))


def text_hash(text: str) -> str:
    """First digits of the SHA-256 of a text (UTF-8, lone surrogates passed through)."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:HASH_DIGITS]


def raw_tags(message: BaseMessage) -> list[Any]:
    """Tags of a message as they came, unchecked."""
    raw = message.additional_kwargs.get(TAG_KEY)
    if raw is None:
        return []
    return raw if isinstance(raw, list) else [raw]


def tag_place(message: BaseMessage) -> str:
    """Where a tag stands, for errors."""
    return f"{type(message).__name__} {message.id}" if message.id else type(message).__name__


def check_tag(raw: object, known: Collection[str], where: str) -> Tag:
    """Read one raw tag.

    Raises:
        TagError: it is malformed, or its region is not among ``known``.
    """
    if not isinstance(raw, dict):
        raise _malformed(where, f"a tag is a dict, not {type(raw).__name__}")
    if unknown := set(raw) - _FIELDS:
        raise _malformed(where, f"unknown fields {sorted(map(str, unknown))}")
    region, pinned = raw.get("region"), raw.get("pinned", False)
    if not isinstance(region, str) or not isinstance(pinned, bool):
        raise _malformed(where, "'region' must be a string and 'pinned' a bool")
    ids = {field: raw.get(field, []) for field in ("supersedes", "needs_next")}
    for field, names in ids.items():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise _malformed(where, f"'{field}' must be a list of ids")
    if region not in known:
        rule = f"unknown region {region!r}; known are {', '.join(known)}"
        raise TagError(where=where, rule=rule, remedy="Use a known region, or add it in MemDecayConfig(regions=...).")
    span, from_node = _parse_span(raw, where), raw.get("source") == "node"
    return Tag(region, pinned, from_node, span, tuple(ids["supersedes"]), tuple(ids["needs_next"]))


def _parse_span(raw: dict[str, Any], where: str) -> TextSpan | None:
    if not _SPAN_FIELDS & set(raw):
        return None
    start, end, length, digest = (raw.get(name) for name in ("start", "end", "length", "sha256"))
    numbers = all(type(n) is int for n in (start, end, length)) and isinstance(digest, str)
    if not numbers or not 0 <= start < end:  # type: ignore[operator]  # integers by the check before
        raise _malformed(where, "a sub-message tag needs 0 <= start < end, length and sha256")
    return TextSpan(start, end, length, digest)  # type: ignore[arg-type]


def _malformed(where: str, rule: str) -> TagError:
    return TagError(where=where, rule=rule, remedy="Make tags with tag(text, region) or mark(message, ...).")
