"""Agents against one engine, inside its process: who waits for a tool, who is being served, and what that took.

The clock runs with the engine: a step, or taking in a request, lasts as long as it really takes, and while nobody is
being served the clock jumps to the end of the next tool call. Between two slices it stands still, so that two engines
can take turns on one machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from memdecay_adapters.bench.engine_under_test import DrivenEngine
from memdecay_adapters.bench.serve_workload import Agent
from memdecay_agents import RequestHints, Span


@dataclass(frozen=True)
class ServedTurn:
    """One turn that has ended."""

    agent: str
    turn: int
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt, not computed again."""
    first_token_seconds: float
    """From sending the turn."""
    decode_seconds: float
    """From the first token to the last one."""


@dataclass
class Slice:
    """What was served while a number of tokens was generated."""

    seconds: float = 0.0
    idle_seconds: float = 0.0
    """Part of them in which every agent waited for its tool."""
    steps: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    most_running: int = 0
    """Agents that were served in the same step, at most."""
    peak_pages: int = 0
    """Pages that were not free, at most: of running requests and of idle sessions."""
    turns: list[ServedTurn] = field(default_factory=list)


@dataclass
class _Conversation:
    agent: Agent
    ready_at: float
    """When its tool has ended; on the loop's clock."""
    ids: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    turn: int = 0


@dataclass
class _Running:
    conversation: _Conversation
    request: Any
    """vLLM's, for its count of preemptions."""
    sent_at: float
    first_at: float | None = None
    preemptions: int = 0


class ClosedLoop:
    """Agents that each send their next turn when the last one has been answered and their tool has ended.

    Args:
        engine: serves them; nobody else uses it.
        agents: all begin at once.
        output_tokens: generated in each turn.
        budget_tokens: of each agent; None, and on a stock engine: no budget.
    """

    def __init__(
        self, engine: DrivenEngine, agents: Sequence[Agent], output_tokens: int, budget_tokens: int | None
    ) -> None:
        self._engine, self._output_tokens, self._budget_tokens = engine, output_tokens, budget_tokens
        self._waiting = [_Conversation(agent, 0.0) for agent in agents]
        self._running: dict[str, _Running] = {}
        self._clock = 0.0
        self._generated = 0
        self._wanted = 0

    def advance(self, tokens: int) -> Slice:
        """Serve until so many more tokens were generated, or all conversations have ended.

        A step generates several tokens; what one slice had too much the next one has less.
        """
        self._wanted += tokens
        slice_, began, before = Slice(), self._clock, self._generated
        while self._generated < self._wanted and (self._running or self._waiting):
            started = time.perf_counter()
            self._send()
            if not self._running:
                ready_at = min(conversation.ready_at for conversation in self._waiting)
                slice_.idle_seconds += ready_at - self._clock
                self._clock = ready_at
                continue
            outputs = self._engine.engine.step()
            self._clock += time.perf_counter() - started
            self._take_in(outputs, slice_)
        slice_.seconds = self._clock - began
        slice_.generated_tokens = self._generated - before
        return slice_

    def _send(self) -> None:
        for conversation in [one for one in self._waiting if one.ready_at <= self._clock]:
            self._waiting.remove(conversation)
            turn = conversation.agent.turns[conversation.turn]
            base = len(conversation.ids)
            conversation.ids += turn.token_ids
            conversation.spans += [span._replace(start=base + span.start, end=base + span.end) for span in turn.spans]
            hints = RequestHints(
                session=conversation.agent.name,
                agent=conversation.agent.name,
                turn=conversation.turn,
                budget_tokens=self._budget_tokens,
                spans=tuple(conversation.spans),
            )
            known = set(self._engine.scheduler.requests)
            name = self._engine.add(conversation.ids, self._output_tokens, hints, None)
            (new,) = set(self._engine.scheduler.requests) - known
            self._running[name] = _Running(conversation, self._engine.scheduler.requests[new], self._clock)

    def _take_in(self, outputs: Sequence[Any], slice_: Slice) -> None:
        scheduler = self._engine.scheduler
        pool = scheduler.kv_cache_manager.block_pool
        slice_.steps += 1
        slice_.peak_pages = max(slice_.peak_pages, pool.num_gpu_blocks - 1 - pool.get_num_free_blocks())
        ended = sum(1 for output in outputs if output.finished)
        slice_.most_running = max(slice_.most_running, len(scheduler.running) + ended)
        for running in self._running.values():
            slice_.preemptions += running.request.num_preemptions - running.preemptions
            running.preemptions = running.request.num_preemptions
        for output in outputs:
            running = self._running[output.request_id]
            if running.first_at is None and output.outputs[0].token_ids:
                running.first_at = self._clock
            if output.finished:
                self._end(self._running.pop(output.request_id), output, slice_)
        made = sum(len(one.request.output_token_ids) for one in self._running.values())
        self._generated = self._ended_tokens + made

    _ended_tokens = 0

    def _end(self, running: _Running, output: Any, slice_: Slice) -> None:
        conversation = running.conversation
        made = list(output.outputs[0].token_ids)
        assert running.first_at is not None
        assert len(made) == self._output_tokens
        slice_.turns.append(
            ServedTurn(
                agent=conversation.agent.name,
                turn=conversation.turn,
                prompt_tokens=len(conversation.ids),
                cached_tokens=output.num_cached_tokens or 0,
                first_token_seconds=running.first_at - running.sent_at,
                decode_seconds=self._clock - running.first_at,
            )
        )
        self._ended_tokens += len(made)
        base = len(conversation.ids)
        conversation.ids += made
        conversation.spans.append(Span(base, base + len(made), "scratchpad"))
        conversation.turn += 1
        if conversation.turn < len(conversation.agent.turns):
            conversation.ready_at = self._clock + conversation.agent.turns[conversation.turn].gap_seconds
            self._waiting.append(conversation)


def begin(engine: DrivenEngine, agents: Sequence[Agent], output_tokens: int, budget_tokens: int | None) -> None:
    """Give an engine its agents; for `EngineUnderTest.run`."""
    engine.tool = ClosedLoop(engine, agents, output_tokens, budget_tokens)


def advance(engine: DrivenEngine, tokens: int) -> Slice:
    """Serve them; for `EngineUnderTest.run`."""
    loop: ClosedLoop = engine.tool
    return loop.advance(tokens)


def joined(slices: Sequence[Slice]) -> dict[str, Any]:
    """A whole conversation's figures, ready for JSON."""
    turns = [turn for one in slices for turn in one.turns]
    seconds = sum(one.seconds for one in slices)
    generated = sum(one.generated_tokens for one in slices)
    between = sum(turn.decode_seconds for turn in turns)
    return {
        "seconds": round(seconds, 3),
        "idle_seconds": round(sum(one.idle_seconds for one in slices), 3),
        "steps": sum(one.steps for one in slices),
        "generated_tokens": generated,
        "tokens_per_second": round(generated / seconds, 3),
        "decode_tokens_per_second_per_agent": round((generated - len(turns)) / between, 3) if between else None,
        "first_token_seconds_median": round(statistics.median(turn.first_token_seconds for turn in turns), 4),
        "first_token_seconds_worst": round(max(turn.first_token_seconds for turn in turns), 4),
        "computed_prompt_tokens": sum(turn.prompt_tokens - turn.cached_tokens for turn in turns),
        "turns": len(turns),
        "preemptions": sum(one.preemptions for one in slices),
        "agents_at_once": max(one.most_running for one in slices),
        "peak_pages": max(one.peak_pages for one in slices),
    }
