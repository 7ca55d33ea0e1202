"""What the newest input of a conversation says that the next turn will need: it comes back from host memory then.

A tag of a message behind the last answer names earlier messages and tool calls by id. Tags before the last answer were
said for an earlier turn and are over.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from langchain_core.messages import AIMessage, BaseMessage

from memdecay_adapters.langchain.blocks import split_blocks
from memdecay_adapters.langchain.tags import parse_tag, read_tags, tag_place
from memdecay_agents.errors import TagError
from memdecay_agents.recall.wishes import RecallWish

MOST_RANGES = 64
"""Of one request: hints have little room beside the spans. The newest messages are kept."""


def needed_next(
    messages: Sequence[BaseMessage], message_spans: Sequence[tuple[int, int]], known: Collection[str]
) -> RecallWish | None:
    """The tokens that the next turn will need; None: nothing is said.

    Tags that cannot be used say nothing here: `build_prompt` has spoken of them.

    Args:
        messages: the conversation.
        message_spans: tokens [first, past the last) of each message.
        known: names of the regions.
    """
    answers = [number for number, message in enumerate(messages) if isinstance(message, AIMessage)]
    newest = messages[answers[-1] + 1 :] if answers else messages
    names = {name for message in newest for name in _named(message, known)}
    ranges = {span for message, span in zip(messages, message_spans, strict=True) if names & _ids(message)}
    tokens = sorted((start, end) for start, end in ranges if start < end)
    return RecallWish(tokens=tuple(tokens[-MOST_RANGES:])) if tokens else None


def _named(message: BaseMessage, known: Collection[str]) -> list[str]:
    tags = read_tags(message, known, _ignore)
    for block in split_blocks(message.content):
        if block.tag is not None and (found := parse_tag(block.tag, known, _ignore, tag_place(message))):
            tags.append(found)
    return [name for tag in tags for name in tag.needs_next]


def _ids(message: BaseMessage) -> set[str]:
    """What a message can be named by: its own id, the call that it answers, the calls that it makes."""
    calls = [call["id"] for call in message.tool_calls] if isinstance(message, AIMessage) else []
    return {name for name in (message.id, getattr(message, "tool_call_id", None), *calls) if name}


def _ignore(error: TagError) -> None:
    """Nothing is said."""
