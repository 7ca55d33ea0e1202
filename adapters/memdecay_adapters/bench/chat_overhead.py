"""What ChatMemDecay adds to a warm call: all the Python outside the engine, against the time of a 1,000-token turn.

A turn is the last message of a conversation, some 1,000 new tokens, and a short answer; the conversation before it is
in the session already. Overhead is the call's wall time without the request's own time in the engine: rendering,
tokenising, spans, hints, the hand-over between threads, and reading the answer. Spans are computed for the whole
conversation at each turn, so a long one is measured too.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from memdecay_adapters.bench.machine import machine, versions
from memdecay_adapters.bench.result import BenchResult
from memdecay_adapters.bench.statistics import paired_ratio
from memdecay_adapters.engine import MemDecayEngine
from memdecay_adapters.langchain.call_settings import ModelDefaults
from memdecay_adapters.langchain.chat_model import ChatMemDecay
from memdecay_adapters.langchain.chat_request import build_request

SCHEMA_VERSION = 1
OVERHEAD_BOUND = 0.05
"""Most that the overhead may be of the turn's time in the engine."""

_WORDS = ("crate", "pear", "harbour", "ledger", "paint", "window", "seven", "orchard", "letter", "copper", "bridge")
_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look up what a crate holds.",
        "parameters": {"type": "object", "properties": {"crate": {"type": "integer"}}, "required": ["crate"]},
    },
}


@dataclass(frozen=True)
class ChatOverheadOptions:
    """What to measure, and how much of it."""

    samples: int = 15
    """Turns for each length of history; fewer than 15 claim no bound."""
    turn_tokens: int = 1000
    """New tokens of a turn, about."""
    history_tokens: tuple[int, ...] = (0, 5000)
    """Tokens of the conversation before the turn, about."""
    answer_tokens: int = 2
    seed: int = 0


def run_chat_overhead(engine: MemDecayEngine, options: ChatOverheadOptions | None = None) -> dict[str, Any]:
    """Measure warm calls on an engine that nobody else uses.

    Args:
        engine: the engine; its model decides what a turn costs.
        options: what to measure.

    Returns:
        A JSON-ready dict. For each history ``h``: ``chat_overhead_ratio_h`` (median of overhead / turn, beside it
        ``_interval``, ``_pairs``, ``_bound`` and ``_bound_met``), ``chat_overhead_seconds_h``, its part
        ``chat_request_seconds_h`` (building the request; the rest is hand-over and reading),
        ``chat_turn_seconds_h``, ``chat_prompt_tokens_h`` and ``chat_computed_tokens_h``. ``failed_bounds`` names the
        ratios that miss theirs.
    """
    options = options or ChatOverheadOptions()
    result = BenchResult()
    result.values.update(
        schema_version=SCHEMA_VERSION,
        model=engine.model_name,
        dtype=engine.dtype,
        page_size_tokens=engine.config.page_size_tokens,
        machine=machine(),
        versions=versions(),
        seed=options.seed,
    )
    for history_tokens in options.history_tokens:
        turns = _Turns(engine, options, history_tokens)
        turns.run()
        ratio = paired_ratio(turns.overheads, turns.in_engine)
        result.set_ratio(f"chat_overhead_ratio_{history_tokens}", ratio, OVERHEAD_BOUND)
        for name, figure in turns.figures().items():
            result.values[f"chat_{name}_{history_tokens}"] = figure
    return {**result.values, "failed_bounds": result.failed_bounds}


class _Turns:
    """Turns after one conversation: each rewinds the session to the conversation's end and adds a new message."""

    def __init__(self, engine: MemDecayEngine, options: ChatOverheadOptions, history_tokens: int) -> None:
        self.engine, self.options = engine, options
        self.model = ChatMemDecay(engine=engine, max_tokens=options.answer_tokens)
        self.bound = self.model.bind_tools([_TOOL])
        self.thread = f"chat-overhead-{history_tokens}"
        self.overheads: list[float] = []
        """Seconds, one a turn."""
        self.in_engine: list[float] = []
        """Seconds, one a turn."""
        self.requests: list[float] = []
        """Seconds, one a turn: part of the overhead, measured by building the request once more."""
        self.usage: Any = None
        self._random = random.Random(options.seed)
        self._history = self._conversation(history_tokens)

    def run(self) -> None:
        if len(self._history) > 1:
            self.bound.invoke([*self._history, HumanMessage("Begin.")], thread_id=self.thread)
        for turn in range(self.options.samples + 1):
            messages = [*self._history, HumanMessage(self._text(self.options.turn_tokens))]
            started = time.perf_counter()
            self._build(messages)
            built = time.perf_counter()
            answer = self.bound.invoke(messages, thread_id=self.thread)
            wall = time.perf_counter() - built
            self.usage = answer.usage_metadata
            if turn:  # the first one warms up
                in_engine = answer.response_metadata["memdecay"]["wall_seconds"]
                self.requests.append(built - started)
                self.in_engine.append(in_engine)
                self.overheads.append(wall - in_engine)
        self.engine.close_sessions(self.thread)

    def figures(self) -> dict[str, Any]:
        return {
            "overhead_seconds": round(statistics.median(self.overheads), 6),
            "request_seconds": round(statistics.median(self.requests), 6),
            "turn_seconds": round(statistics.median(self.in_engine), 6),
            "prompt_tokens": self.usage["input_tokens"],
            "computed_tokens": self.usage["input_tokens"] - self.usage["input_token_details"]["cache_read"],
        }

    def _build(self, messages: Sequence[BaseMessage]) -> None:
        build_request(
            self.engine,
            messages,
            None,
            {"tools": [_TOOL], "thread_id": self.thread},
            metadata={},
            sampling_defaults={"max_tokens": self.options.answer_tokens},
            defaults=ModelDefaults(),
        )

    def _conversation(self, tokens: int) -> list[BaseMessage]:
        """A system message and rounds of question, tool call, result and answer, about this long."""
        messages: list[BaseMessage] = [SystemMessage("You keep the ledger of the harbour.")]
        for number in range(tokens // 250):
            call = {"name": "look_up", "args": {"crate": number}, "id": f"call_{number:05d}"}
            messages += [
                HumanMessage(self._text(40)),
                AIMessage("", tool_calls=[call]),
                ToolMessage(self._text(100), tool_call_id=call["id"], name="look_up"),
                AIMessage(self._text(40)),
            ]
        return messages

    def _text(self, tokens: int) -> str:
        """Words, a token each or a little more."""
        return " ".join(self._random.choices(_WORDS, k=tokens * 10 // 11))
