"""Answers keep the token ids that were generated, where their text would be tokenised otherwise.

Under a grammar a model often writes other tokens than its tokenizer makes of the same text (``{`` and ``"`` for
``{"``). A prompt that repeats the answer would then leave the session's history in the middle of the call. Such an
answer carries its ids in its metadata, and they are put back where the prompt repeats it to the letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from langchain_core.messages import AIMessage, BaseMessage
from numpy.typing import NDArray

IDS_KEY = "generated_token_ids"
"""Key in ``response_metadata["memdecay"]``."""


class Kept(NamedTuple):
    """An answer inside a rendered prompt."""

    start: int
    """First character of the answer."""
    end: int
    """The one after its last."""
    token_ids: tuple[int, ...]
    ends: tuple[int, ...]
    """End of each token, in characters from ``start``."""


def ids_to_keep(tokenizer: Any, token_ids: Sequence[int], text: str) -> list[int] | None:
    """The ids of an answer without its end token, if the tokenizer would make others of its text; else None."""
    ids = list(token_ids)
    if ids and ids[-1] == tokenizer.eos_token_id:
        ids.pop()
    if not ids or not _splits_at_special_tokens(_Identity(tokenizer)) or _text(tokenizer, ids) != text:
        return None
    return None if list(tokenizer(text, add_special_tokens=False)["input_ids"]) == ids else ids


def find_kept(messages: Sequence[BaseMessage], tokenizer: Any, text: str, opening: str) -> list[Kept]:
    """Find the answers that carry ids, where the prompt repeats them to the letter.

    Args:
        messages: the conversation.
        tokenizer: the one that will tokenise ``text``.
        text: the rendered prompt.
        opening: the generation prompt: each answer came right after one.
    """
    found: list[Kept] = []
    position = 0
    for message in messages:
        ids = _carried(message)
        if not ids or not opening or not _splits_at_special_tokens(_Identity(tokenizer)):
            continue
        answer, ends = _decoded(_Identity(tokenizer), ids)
        start = text.find(opening + answer, position) if answer else -1
        if start >= 0:
            start += len(opening)
            position = start + len(answer)
            found.append(Kept(start, position, ids, ends))
    return found


def encode_around(tokenizer: Any, text: str, kept: Sequence[Kept]) -> tuple[list[int], NDArray[np.int64]]:
    """Tokenise a text with a fast tokenizer, all but the kept answers, whose ids stay.

    Returns:
        Token ids, and their offsets in characters, int64 [n, 2].
    """
    ids: list[int] = []
    pairs: list[NDArray[np.int64]] = []

    def plain(start: int, end: int) -> None:
        if start < end or not kept:
            encoded = tokenizer(text[start:end], add_special_tokens=False, return_offsets_mapping=True)
            ids.extend(encoded["input_ids"])
            pairs.append(np.asarray(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2) + start)

    position = 0
    for answer in kept:
        plain(position, answer.start)
        ids.extend(answer.token_ids)
        ends = np.asarray(answer.ends, dtype=np.int64) + answer.start
        pairs.append(np.stack([np.concatenate(([answer.start], ends[:-1])), ends], axis=1))
        position = answer.end
    plain(position, len(text))
    return ids, np.concatenate(pairs) if pairs else np.zeros((0, 2), dtype=np.int64)


def _carried(message: BaseMessage) -> tuple[int, ...]:
    """The ids that a message carries; metadata may come from anywhere, and what is no list of ids is none."""
    about = message.response_metadata.get("memdecay") if isinstance(message, AIMessage) else None
    ids = about.get(IDS_KEY) if isinstance(about, dict) else None
    if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        return ()
    return tuple(ids)


class _Identity(NamedTuple):
    """A tokenizer as part of a cache's key: by identity."""

    tokenizer: Any

    def __hash__(self) -> int:
        return id(self.tokenizer)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.tokenizer is self.tokenizer


@lru_cache(maxsize=512)
def _decoded(identity: _Identity, ids: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Text of ids and where each token ends in it; empty where an id is unknown."""
    tokenizer = identity.tokenizer
    if max(ids) >= len(tokenizer):
        return "", ()
    text = _text(tokenizer, ids)
    ends: list[int] = []
    for count in range(1, len(ids)):
        shown = _text(tokenizer, ids[:count]).rstrip("\ufffd")  # bytes of a character that is not whole yet
        ends.append(len(shown) if text.startswith(shown) else ends[-1] if ends else 0)
    return text, (*ends, len(text))


def _text(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


@lru_cache(maxsize=16)
def _splits_at_special_tokens(identity: _Identity) -> bool:
    """Whether text after a special token is tokenised as if it stood alone, so that a prompt may be cut there."""
    tokenizer, probe = identity.tokenizer, "a probe"
    if not tokenizer.eos_token or not getattr(tokenizer, "is_fast", False):
        return False
    alone, after = (
        list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in (probe, tokenizer.eos_token + probe)
    )
    return after == [tokenizer.eos_token_id, *alone]
