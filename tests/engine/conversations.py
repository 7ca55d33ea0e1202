"""Made-up conversations over the random Llama's vocabulary: token ids with regions, pins and what replaces what."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from memdecay_agents import AgentBudget, RequestHints
from memdecay_agents.recall.wishes import RecallWish
from memdecay_agents.spans import Span, SpanFlag, clip
from tests.engine.random_llama import VOCABULARY

SYSTEM_TOKENS = 40
REGIONS = ("plan", "user", "tool_in", "tool_out", "retrieval", "scratchpad")
OUTPUT_REGION = "scratchpad"


def passage(seed: int, tokens: int, start: int = 0) -> tuple[list[int], list[Span]]:
    """Token ids and the spans that cut them, placed at ``start``; a longer passage of a seed begins like a shorter one.

    One span in eight is short and pinned, one in eight superseded.
    """
    ids = random.Random(f"ids {seed}").choices(range(3, VOCABULARY), k=tokens)
    draw = random.Random(f"spans {seed}")
    spans, at = [], 0
    while at < tokens:
        kind, region = draw.randrange(8), draw.choice(REGIONS)
        length = draw.randint(1, 12) if kind == 0 else draw.randint(5, 90)
        flags = {0: SpanFlag.PINNED, 1: SpanFlag.SUPERSEDED}.get(kind, SpanFlag.NONE)
        spans.append(Span(start + at, start + min(at + length, tokens), region, flags))
        at += length
    return ids, spans


@dataclass
class Conversation:
    """One agent's conversation, as its client remembers it: pins of a token never change."""

    tenant: str
    thread: str
    agent: str
    budget: AgentBudget | None
    hinted: bool = True
    """False: sent without hints, as to a stock engine."""
    pins: tuple[str, ...] = ()
    """Regions pinned beside the system prompt, in all its turns."""
    rewinds: Literal["continue", "recompute"] = "continue"
    """What its sessions do with an edited history."""
    tokens: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    @classmethod
    def begin(cls, text: int, length: int, **fields: object) -> Conversation:
        """A system prompt, one of three, and a passage."""
        conversation = cls(**fields)  # type: ignore[arg-type]
        conversation.tokens = random.Random(f"system {text % 3}").choices(range(3, VOCABULARY), k=SYSTEM_TOKENS)
        conversation.spans = [Span(0, SYSTEM_TOKENS, "system")]
        conversation.append(text, length)
        return conversation

    def append(self, text: int, length: int) -> None:
        """Go on with a passage; one in three replaces what a tool said last."""
        if text % 3 == 0:
            self._supersede("tool_out")
        ids, spans = passage(text, length, start=len(self.tokens))
        self.tokens = self.tokens + ids
        self.spans = self.spans + spans

    def _supersede(self, region: str) -> None:
        for number in reversed(range(len(self.spans))):
            span = self.spans[number]
            if span.region == region:
                superseded = span._replace(flags=span.flags | SpanFlag.SUPERSEDED)
                self.spans = [*self.spans[:number], superseded, *self.spans[number + 1 :]]
                return

    def answered(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Take in the answer to a prompt, unless the conversation has moved on from it."""
        if answer and self.tokens == list(prompt):
            start = len(self.tokens)
            self.spans = [*self.spans, Span(start, start + len(answer), OUTPUT_REGION)]
            self.tokens = [*self.tokens, *answer]

    def rewind(self, tokens: int) -> None:
        """Forget all but the first tokens; at least one stays."""
        tokens = max(tokens, 1)
        self.tokens = self.tokens[:tokens]
        self.spans = clip(self.spans, 0, len(self.tokens))

    def hints(self) -> RequestHints | None:
        """The hints of the whole conversation as a prompt."""
        if not self.hinted:
            return None
        wish = RecallWish(regions=("retrieval", "tool_out"), tokens=((0, len(self.tokens) // 2 + 1),))
        asks = len(self.tokens) % 8  # now and then, and always the same for the same conversation
        return RequestHints(
            recall=wish if asks == 1 else None, needs_next=wish if asks == 2 else None,
            tenant=self.tenant, session=self.thread, agent=self.agent, budget=self.budget, rewind=self.rewinds,
            pins=self.pins, spans=tuple(self.spans), output_region=OUTPUT_REGION,
        )  # fmt: skip

    def pinned_pages(self, page_size_tokens: int) -> frozenset[int]:
        """Pages that hold a token which must stay."""
        pages: set[int] = set()
        if self.hinted:
            for span in self.spans:
                if span.region in ("system", *self.pins) or span.flags & SpanFlag.PINNED:
                    pages.update(range(span.start // page_size_tokens, (span.end - 1) // page_size_tokens + 1))
        return frozenset(pages)
