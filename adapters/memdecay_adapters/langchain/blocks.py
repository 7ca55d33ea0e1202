"""Content of a message as an ordered list of text and reasoning blocks; what is no text is refused."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from memdecay_agents.errors import UnsupportedError

BlockKind = Literal["text", "reasoning"]
TEXT: BlockKind = "text"
REASONING: BlockKind = "reasoning"


class Block(NamedTuple):
    """A piece of a message's content."""

    kind: BlockKind
    text: str
    tag: object = None
    """Raw tag of the block (``extras["memdecay"]``), unchecked; None: no tag."""


_TEXT_FIELDS: dict[str, str] = {
    "text": "text", "text-plain": "text", "input_text": "text", "output_text": "text", "refusal": "refusal",
}  # fmt: skip
_REASONING_FIELDS: dict[str, tuple[str, ...]] = {
    "reasoning": ("reasoning", "text"), "thinking": ("thinking",), "reasoning_content": ("reasoning_content", "text"),
}  # fmt: skip
_CARRIED_ELSEWHERE = frozenset({
    "tool_call", "tool_call_chunk", "tool_use", "input_json_delta", "invalid_tool_call", "function_call",
    "redacted_thinking", "non_standard", "non_standard_annotation",
})  # fmt: skip


def split_blocks(content: str | list[str | dict[str, Any]]) -> list[Block]:
    """Split a message's content into blocks, in order.

    Blocks of tool calls are left out: messages carry those in ``tool_calls``.

    Raises:
        UnsupportedError: a block that is no text (image, audio, video, file, ...), naming its type.
    """
    if isinstance(content, str):
        return [Block(TEXT, content)] if content else []
    blocks = []
    for item in content:
        if isinstance(item, str):
            blocks.append(Block(TEXT, item))
        elif (block := _block(item)) is not None:
            blocks.append(block)
    return blocks


def _block(item: dict[str, Any]) -> Block | None:
    kind = item.get("type", "text")
    extras = item.get("extras")
    tag = extras.get("memdecay") if isinstance(extras, dict) else None
    if isinstance(tag, list):  # two merged chunks of one block: the later tag counts
        tag = tag[-1] if tag else None
    if kind in _TEXT_FIELDS:
        text = item.get(_TEXT_FIELDS[kind])
        return Block(TEXT, text if isinstance(text, str) else "", tag)
    if kind in _REASONING_FIELDS:
        text = next((item[f] for f in _REASONING_FIELDS[kind] if isinstance(item.get(f), str)), "")
        return Block(REASONING, text, tag)
    if kind == "tool_result":
        return Block(TEXT, "".join(b.text for b in split_blocks(item.get("content") or "")), tag)
    if kind in _CARRIED_ELSEWHERE:
        return None
    raise UnsupportedError(
        where=f"content block of type '{kind}'",
        rule="the engine reads text; image, audio, video and file blocks are not supported",
        remedy="Give the model text: a caption, a transcript, or the extracted text of the file.",
    )
