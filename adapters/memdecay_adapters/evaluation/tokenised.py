"""A trace as tokens: rendered by the model's chat template, regions inferred as for any agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from memdecay_adapters.langchain.marking import tag
from memdecay_adapters.langchain.prompt import build_prompt
from memdecay_adapters.langchain.region_rules import RegionRules
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import TraceError
from memdecay_agents.evaluation.traces import Message, TokenFact, TokenTrace, Trace
from memdecay_agents.spans import Span


def as_langchain(messages: Sequence[Message]) -> list[BaseMessage]:
    """Messages of a trace file as LangChain's; a ``region`` becomes a tag.

    Raises:
        TraceError: an unknown role.
    """
    made: list[BaseMessage] = []
    for number, message in enumerate(messages):
        role, content = message["role"], message.get("content") or ""
        text: Any = [tag(content, message["region"])] if message.get("region") and content else content
        if role == "system":
            made.append(SystemMessage(text))
        elif role == "user":
            made.append(HumanMessage(text))
        elif role == "assistant":
            calls = [{**call, "type": "tool_call"} for call in message.get("tool_calls") or ()]
            made.append(AIMessage(text, tool_calls=calls))
        elif role == "tool":
            made.append(ToolMessage(text, tool_call_id=message.get("tool_call_id") or ""))
        else:
            raise TraceError(
                where=f"message {number}",
                rule=f"unknown role {role!r}",
                remedy="Use system, user, assistant or tool.",
            )
    return made


def tokenise_trace(trace: Trace, tokenizer: Any, config: MemDecayConfig) -> TokenTrace:
    """Render and tokenise a trace and find its facts.

    Args:
        trace: messages and facts.
        tokenizer: a fast transformers tokenizer with a chat template.
        config: knows the regions.

    Raises:
        TraceError: a fact's text does not occur in the rendered prompt behind its message's beginning.
    """
    rules = RegionRules(newest_of_regions=())  # what replaces what, and from when on, the trace says itself
    messages = as_langchain(trace.messages)
    prompt = build_prompt(messages, tokenizer, config=config, add_generation_prompt=False, rules=rules)
    offsets = np.asarray(
        tokenizer(prompt.text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"], dtype=np.int64
    )
    bounds = _message_starts(trace, prompt.text)
    n_tokens = len(prompt.token_ids)

    def token_at(character: int) -> int:
        return int(np.searchsorted(offsets[:, 1], character, side="right"))

    facts = []
    for fact in trace.facts:
        start = prompt.text.find(fact.text, bounds[fact.message])
        if start < 0:
            raise TraceError(
                where=f"trace {trace.id!r}, fact {fact.id!r}",
                rule=f"its text does not occur in message {fact.message}: {fact.text[:60]!r}",
                remedy="Give the text exactly as it stands in the message.",
            )
        first, end = token_at(start), token_at(start + len(fact.text) - 1) + 1
        needed = fact.needed_by_message
        facts.append(
            TokenFact(
                id=fact.id,
                region=_region_at(prompt.spans, first, end),
                start=first,
                end=end,
                needed_at=n_tokens if needed is None else token_at(bounds[needed]),
                question=fact.question,
                mentioned_again=fact.mentioned_again,
                asked_as=fact.asked_as,
            )
        )
    return TokenTrace(
        id=trace.id,
        source=trace.source,
        length=trace.nominal_tokens or 1 << (n_tokens - 1).bit_length(),
        token_ids=np.asarray(prompt.token_ids, dtype=np.int64),
        spans=tuple(prompt.spans),
        facts=tuple(facts),
        superseded=tuple(
            (token_at(bounds[old]), token_at(bounds[old + 1]), token_at(bounds[new]))
            for new, old in sorted(trace.supersedes.items())
        ),
    )


def _message_starts(trace: Trace, text: str) -> list[int]:
    """Character index at which each message's own text begins, and the text's length."""
    starts, cursor = [], 0
    for message in trace.messages:
        wanted = (message.get("content") or "").strip()
        if not wanted and message.get("tool_calls"):
            wanted = str(message["tool_calls"][0]["name"])
        found = text.find(wanted, cursor) if wanted else cursor
        starts.append(found if found >= 0 else cursor)
        cursor = starts[-1] + (len(wanted) if found >= 0 else 0)
    return [*starts, len(text)]


def _region_at(spans: Sequence[Span], start: int, end: int) -> str:
    """Region of most of the tokens [start, end)."""
    most = max(spans, key=lambda span: min(span.end, end) - max(span.start, start))
    return most.region
