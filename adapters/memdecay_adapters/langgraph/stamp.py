"""Stamping what a node writes: new messages in its output get the node's ``output_region`` as a tag.

A stamp is written on a copy of the message, as one more plain dict in ``additional_kwargs["memdecay"]``
with ``"source": "node"``: it stands for the text of the message; tool-call arguments and reasoning keep
the region that inference gives them. A message that carries a tag already is left alone.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage, RemoveMessage, ToolMessage, convert_to_messages
from langgraph.types import Command, Overwrite
from pydantic import BaseModel

TAG_KEY = "memdecay"
"""Carrier of tags in ``additional_kwargs`` and in a content block's ``extras``."""


_MAX_DEPTH = 4
_LEAVES = frozenset({str, int, float, bool, bytes, type(None)})


class KnownMessages(NamedTuple):
    """The messages that a node was given."""

    ids: frozenset[str]
    """Message ids."""
    objects: frozenset[int]
    """``id()`` of the message objects, for messages without an id. The input keeps them alive."""

    def has(self, message: BaseMessage) -> bool:
        """Return whether the node had this message before it ran."""
        return (message.id is not None and message.id in self.ids) or id(message) in self.objects


def known_messages(node_input: object) -> KnownMessages:
    """Collect the messages anywhere in a node's input (a state, or the argument of a ``Send``)."""
    found = list(_messages_in(node_input))
    return KnownMessages(frozenset(m.id for m in found if m.id), frozenset(id(m) for m in found))


def stamp_message(message: BaseMessage, region: str) -> BaseMessage:
    """Return a copy tagged with ``region``, or the message itself where a tag or nothing to tag is."""
    if isinstance(message, RemoveMessage) or is_tagged(message):
        return message
    tag = {"region": region, "source": "node"}
    return message.model_copy(update={"additional_kwargs": {**message.additional_kwargs, TAG_KEY: [tag]}})


def is_tagged(message: BaseMessage) -> bool:
    """Return whether the message or one of its content blocks carries a tag."""
    if message.additional_kwargs.get(TAG_KEY):
        return True
    blocks = message.content if isinstance(message.content, list) else []
    extras = [block.get("extras") for block in blocks if isinstance(block, dict)]
    return any(isinstance(extra, dict) and bool(extra.get(TAG_KEY)) for extra in extras)


def stamp_output(
    output: Any,
    known: KnownMessages,
    region: str,
    message_keys: Collection[str] = frozenset(),
    *,
    tool_results: bool = True,
) -> Any:
    """Return a node's output with its new messages stamped; what has nothing to stamp is returned as it is.

    Args:
        output: what the node returned: None, a state update (dict, pydantic, dataclass), a message, a
            ``Command``, or a list of those.
        known: messages of the node's input; they are not new.
        region: the node's output region.
        message_keys: state keys that langgraph's ``add_messages`` reduces. Under these, messages may be
            written as dicts, tuples or strings, and are converted as the reducer would.
        tool_results: False: results of tools keep the region of their tool; what a subgraph returns is its answer
            and all that led to it.

    Nothing is changed in place: a node may return objects that it keeps.
    """
    return _Stamper(known, region, frozenset(message_keys), tool_results).update(output)


@dataclasses.dataclass(frozen=True, slots=True)
class _Stamper:
    known: KnownMessages
    region: str
    message_keys: frozenset[str]
    tool_results: bool = True

    def update(self, update: Any) -> Any:
        """Stamp a state update: what langgraph takes as a node's return value."""
        if isinstance(update, Command):
            inner = self.update(update.update)
            return update if inner is update.update else dataclasses.replace(update, update=inner)
        if type(update) is tuple and len(update) == 2 and isinstance(update[0], str):
            value = self.key(*update)
            return update if value is update[1] else (update[0], value)
        if type(update) in (list, tuple):
            return _rebuilt(update, [self.update(item) for item in update])
        if isinstance(update, dict):
            return _rebuilt_dict(update, {k: self.key(k, v) for k, v in update.items()})
        if isinstance(update, BaseModel) and not isinstance(update, BaseMessage):
            changed = self.fields(update, update.model_fields_set)
            return update.model_copy(update=changed) if changed else update
        if dataclasses.is_dataclass(update) and not isinstance(update, (type, Overwrite)):
            changed = self.fields(update, {f.name for f in dataclasses.fields(update) if f.init})
            return dataclasses.replace(update, **changed) if changed else update
        return self.value(update)

    def key(self, key: object, value: Any) -> Any:
        """Stamp the update of one state key."""
        if key in self.message_keys and not isinstance(value, Overwrite):
            value = _as_messages(value)
        return self.value(value)

    def fields(self, state: object, names: Iterable[str]) -> dict[str, Any]:
        stamped = {name: self.key(name, getattr(state, name)) for name in names}
        return {name: value for name, value in stamped.items() if value is not getattr(state, name)}

    def value(self, value: Any, depth: int = 0) -> Any:
        """Stamp messages in a value: the message itself, or messages in lists, tuples and dicts."""
        if isinstance(value, BaseMessage):
            kept = self.known.has(value) or (isinstance(value, ToolMessage) and not self.tool_results)
            return value if kept else stamp_message(value, self.region)
        if isinstance(value, Overwrite):
            inner = self.value(value.value, depth)
            return value if inner is value.value else dataclasses.replace(value, value=inner)
        if depth >= _MAX_DEPTH:
            return value
        if type(value) in (list, tuple):
            return _rebuilt(value, [v if type(v) in _LEAVES else self.value(v, depth + 1) for v in value])
        if isinstance(value, dict):
            return _rebuilt_dict(value, {k: self.value(v, depth + 1) for k, v in value.items()})
        return value


def _as_messages(value: Any) -> Any:
    """Convert what ``add_messages`` accepts into messages; leave everything else to the reducer."""
    items = value if isinstance(value, list) else [value]
    if value is None or all(isinstance(item, BaseMessage) for item in items):
        return value
    try:
        return convert_to_messages(items)
    except (ValueError, TypeError, NotImplementedError):
        return value


def _messages_in(value: object, depth: int = 0) -> Iterator[BaseMessage]:
    """Yield the messages in a node's input: a state object's fields, then lists, tuples and dicts."""
    children: Iterable[object] = ()
    if isinstance(value, BaseMessage):
        yield value
    elif isinstance(value, Mapping):
        children = value.values()
    elif isinstance(value, (list, tuple)):
        children = value
    elif depth == 0 and isinstance(value, BaseModel):
        children = [getattr(value, name) for name in type(value).model_fields]
    elif depth == 0 and dataclasses.is_dataclass(value) and not isinstance(value, type):
        children = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if depth < _MAX_DEPTH:
        for child in children:
            if type(child) not in _LEAVES:
                yield from _messages_in(child, depth + 1)


def _rebuilt(original: Any, items: list[Any]) -> Any:
    """Return ``original`` if no item changed, else a list or tuple of the new items."""
    changed = any(a is not b for a, b in zip(original, items, strict=True))
    return type(original)(items) if changed else original


def _rebuilt_dict(original: dict[Any, Any], values: dict[Any, Any]) -> dict[Any, Any]:
    """Return ``original`` if no value changed, else a copy of its own type with the new values."""
    if not any(original[key] is not value for key, value in values.items()):
        return original
    copied = copy.copy(original)
    copied.update(values)
    return copied
