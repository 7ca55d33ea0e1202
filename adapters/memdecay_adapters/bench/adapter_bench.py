"""``memdecay bench adapters``: what a region for every token costs beside the plain render and tokenisation.

Both sides make the same token ids of the same conversation with the model's own template. Ours starts from LangChain
messages (conversion, region inference, tracked render, spans), the plain side from finished message dicts: what
transformers' ``apply_chat_template`` does and nothing else.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from memdecay_adapters.bench.machine import machine, versions
from memdecay_adapters.bench.result import BenchResult, save
from memdecay_adapters.bench.statistics import paired_ratio
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import IntegrityError

__all__ = ["run_adapter_bench", "save"]

COST_BOUND = 3.0
"""Most times of the plain render and tokenisation."""

ROUNDS = {"short": 6, "long": 40}
"""Tool rounds of the conversations: about 1,000 and 6,000 tokens."""

_TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the stock list.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}},
    },
}


def run_adapter_bench(model: str | None = None, pairs: int = 21) -> BenchResult:
    """Measure in interleaved pairs.

    Args:
        model: Hugging Face id or folder; None: the default model. Only its tokenizer is loaded.
        pairs: pairs a conversation, after one that is not counted.

    Raises:
        IntegrityError: the two sides do not make the same token ids.
    """
    from transformers import AutoTokenizer

    from memdecay_adapters.models import resolve_model

    path = resolve_model(model)
    tokenizer = AutoTokenizer.from_pretrained(path)
    result = BenchResult()
    result.values.update(schema_version=1, machine=machine(), versions=versions())
    for name, rounds in ROUNDS.items():
        _measure(result, name, _conversation(rounds), tokenizer, pairs)
    return result


def _measure(result: BenchResult, name: str, messages: list[BaseMessage], tokenizer: Any, pairs: int) -> None:
    from memdecay_adapters.langchain.prompt import build_prompt, chat_template_of, template_conversation

    config = MemDecayConfig()
    written = template_conversation(messages, chat_template_of(tokenizer, tools=[_TOOL]), [_TOOL], config)

    def plain() -> list[int]:
        return list(
            tokenizer.apply_chat_template(
                written.plain_messages, tools=written.plain_tools, add_generation_prompt=True, return_dict=False
            )
        )

    def ours() -> list[int]:
        return build_prompt(messages, tokenizer, tools=[_TOOL], config=config).token_ids

    ids = plain()
    if ours() != ids:
        raise IntegrityError(
            where=f"bench adapters, conversation '{name}'",
            rule="the token ids differ from those of apply_chat_template",
            remedy="Report it with the name of the model.",
        )
    timed = [(_seconds(ours), _seconds(plain)) for _ in range(pairs)]
    ratio = paired_ratio([pair[0] for pair in timed], [pair[1] for pair in timed])
    result.values[f"{name}_prompt_tokens"] = len(ids)
    result.values[f"{name}_plain_ms"] = round(1e3 * statistics.median(pair[1] for pair in timed), 2)
    result.values[f"{name}_ours_ms"] = round(1e3 * statistics.median(pair[0] for pair in timed), 2)
    result.set_ratio(f"{name}_cost_ratio", ratio, COST_BOUND)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _conversation(rounds: int) -> list[BaseMessage]:
    """A system message and rounds of question, call, result and answer; about 150 tokens a round."""
    messages: list[BaseMessage] = [SystemMessage("You answer questions about the stock of a shop. " * 4)]
    for number in range(rounds):
        call = {"name": "search", "args": {"query": f"item {number}", "limit": 3}, "id": f"call_{number}"}
        messages += [
            HumanMessage(f"Please find the price of item {number}."),
            AIMessage("I will look that up now.", tool_calls=[call]),
            ToolMessage(f"row {number}: price {number * 7}, shelf B{number}. " * 4, tool_call_id=f"call_{number}"),
            AIMessage(f"Item {number} costs {number * 7}."),
        ]
    return messages
