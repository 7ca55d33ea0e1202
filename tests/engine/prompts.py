"""Prompts for engine tests: prose or ids of a chosen length, and hints that cut a prompt into regions."""

from __future__ import annotations

import functools
from typing import Any

from memdecay_agents import RequestHints

_SENTENCES = (
    "The {a} of the {b} was moved to the {c} before the {d} could be counted.",
    "Nobody in the {b} had asked why the {a} needed a second {c}.",
    "When the {d} closed, the {a} and the {b} were written down beside the {c}.",
    "A {c} without a {d} is of little use to the {a}, said the keeper of the {b}.",
)
_NOUNS = [
    "harbour", "ledger", "lantern", "orchard", "bridge", "kettle", "archive", "violin", "granary", "compass", "tunnel",
    "meadow", "turbine", "parcel", "furnace", "balcony", "saddle", "quarry", "telegraph", "anchor", "chimney",
    "market", "glacier", "printer",
]  # fmt: skip


@functools.lru_cache(maxsize=8)
def prose(seed: int = 0, sentences: int = 400) -> str:
    """Plain English that repeats itself little; the same seed gives the same text."""
    words = [_NOUNS[(seed * 7 + i * i + 3 * i) % len(_NOUNS)] for i in range(4 * sentences)]
    return " ".join(
        _SENTENCES[(seed + i) % 4].format(a=words[4 * i], b=words[4 * i + 1], c=words[4 * i + 2], d=words[4 * i + 3])
        for i in range(sentences)
    )


def prompt_ids(tokenizer: Any, tokens: int, seed: int = 0) -> list[int]:
    """The first ``tokens`` token ids of some prose."""
    ids = tokenizer(prose(seed)).input_ids[:tokens]
    assert len(ids) == tokens
    return ids


def ids(tokens: int, seed: int) -> list[int]:
    """Token ids that the random Llama knows and that spell nothing; the same seed gives the same ones."""
    return [3 + (7 * i * i + 31 * seed * i + seed) % 1000 for i in range(tokens)]


def hints(tokens: int, budget_tokens: int | None, *, session: str = "", **fields: Any) -> RequestHints:
    """Hints that cut a prompt into system (48), plan, tool_out, retrieval and user parts."""
    cuts = [0, 48, 48 + tokens // 10, tokens // 2, tokens - tokens // 5, tokens]
    regions = ["system", "plan", "tool_out", "retrieval", "user"]
    spans = [[a, b, region, 0] for a, b, region in zip(cuts, cuts[1:], regions, strict=False) if b > a]
    return RequestHints(
        **{"session": session, "agent": "tester", "budget_tokens": budget_tokens, "spans": spans, **fields}
    )
