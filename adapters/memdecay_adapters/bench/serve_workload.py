"""The agents of ``memdecay bench serve``: conversations of many turns, joined from whole traces.

Each agent works through its traces one after another in one conversation. A turn brings what came since the last one
(a question, tool results, what the trace's own agent had written), then the engine generates a fixed number of tokens,
which stay in the conversation. Between two turns a tool runs for a while.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from memdecay_adapters.evaluation.tokenised import tokenise_trace
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import TraceError
from memdecay_agents.evaluation.synthetic import synthetic_trace
from memdecay_agents.evaluation.trace_files import read_traces
from memdecay_agents.evaluation.traces import TokenTrace
from memdecay_agents.spans import Span, clip

LEAST_PART = 0.93
MOST_PART = 1.05
"""Joined traces are this much of the length asked for, at least and at most: no trace is cut."""
SYNTHETIC_TOKENS = 1500
"""Length of one made-up trace, about."""


@dataclass(frozen=True)
class WorkloadOptions:
    """How many agents, how long, and how they come and go."""

    agents: int = 8
    agent_tokens: int = 7500
    """Tokens of an agent's joined traces, about."""
    turns: int = 6
    """Turns of an agent, at most; cut where the trace's own agent had spoken."""
    output_tokens: int = 32
    """Generated in each turn."""
    gap_seconds: float = 1.0
    """Mean of the time that a tool takes between two turns; drawn from an exponential distribution."""
    trace_files: tuple[Path, ...] = ()
    """Empty: made-up traces."""
    seed: int = 0


@dataclass(frozen=True)
class AgentTurn:
    """What one turn brings."""

    token_ids: tuple[int, ...]
    """New tokens."""
    spans: tuple[Span, ...]
    """Their regions, counted from the first new token."""
    gap_seconds: float
    """How long the tool before it takes."""

    def shortened(self, part: float, *, gaps: bool = True) -> AgentTurn:
        """Its first tokens only; with ``gaps`` the tool before it takes only such a part of its time, too."""
        end = max(1, int(part * len(self.token_ids)))
        gap = self.gap_seconds * part if gaps else self.gap_seconds
        return AgentTurn(self.token_ids[:end], tuple(clip(self.spans, 0, end)), gap)


@dataclass(frozen=True)
class Agent:
    """One conversation."""

    name: str
    turns: tuple[AgentTurn, ...]
    traces: tuple[str, ...]
    """Ids of the traces that it was joined from."""

    def tokens(self, output_tokens: int) -> int:
        """Length of the conversation at its end, what is generated included."""
        return sum(len(turn.token_ids) + output_tokens for turn in self.turns)

    def shortened(self, part: float, *, gaps: bool = True) -> Agent:
        """The same turns, each with only so much of its new tokens; see `AgentTurn.shortened`."""
        return Agent(self.name, tuple(turn.shortened(part, gaps=gaps) for turn in self.turns), self.traces)


def make_agents(options: WorkloadOptions, model_path: str) -> list[Agent]:
    """Read or make the traces, and join them.

    Args:
        options: how many and how long; the same options make the same agents.
        model_path: whose tokenizer and chat template are used.

    Raises:
        TraceError: a file cannot be read, or its traces do not join to the length asked for.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_path)
    draw = random.Random(options.seed)
    traces = []
    for path in options.trace_files:
        traces += read_traces(path)
    if not options.trace_files:
        each = max(1, round(options.agent_tokens / SYNTHETIC_TOKENS))
        needed, length = options.agents * (each + 1), options.agent_tokens // each

        def count(text: str) -> int:
            return len(tokenizer(text, add_special_tokens=False)["input_ids"])

        traces = [synthetic_trace("varied", options.seed * 1000 + n, length, count) for n in range(needed)]
    draw.shuffle(traces)
    config = MemDecayConfig()
    return join_agents((tokenise_trace(trace, tokenizer, config) for trace in traces), options, draw)


def join_agents(traces: Iterator[TokenTrace], options: WorkloadOptions, draw: random.Random) -> list[Agent]:
    """Give each agent the next traces that fit; a trace goes to one agent only.

    Raises:
        TraceError: they run out.
    """
    agents: list[Agent] = []
    waiting: list[TokenTrace] = []
    while len(agents) < options.agents:
        mine: list[TokenTrace] = []
        room = int(MOST_PART * options.agent_tokens)
        passed_over: list[TokenTrace] = []
        while room > (MOST_PART - LEAST_PART) * options.agent_tokens:
            trace = waiting.pop(0) if waiting else next(traces, None)
            if trace is None:
                raise TraceError(
                    where=f"agent {len(agents)} of {options.agents}",
                    rule=f"the traces do not join to {options.agent_tokens} tokens an agent",
                    remedy="Give more trace files, or ask for fewer agents or tokens.",
                )
            if trace.n_tokens <= room:
                mine.append(trace)
                room -= trace.n_tokens
            else:
                passed_over.append(trace)
        waiting = passed_over + waiting
        agents.append(_agent(f"agent-{len(agents)}", mine, options, draw))
    return agents


def _agent(name: str, traces: Sequence[TokenTrace], options: WorkloadOptions, draw: random.Random) -> Agent:
    ids: list[int] = []
    spans: list[Span] = []
    ends: list[int] = []
    for trace in traces:
        base = len(ids)
        ids += trace.token_ids.tolist()
        for span in trace.spans:
            # a conversation has one system message: the others are instructions that come with a new task
            region = "user" if base and span.region == "system" else span.region
            spans.append(Span(base + span.start, base + span.end, region))
        ends += [base + turn.end for turn in trace.turns()]
    turns = []
    start = 0
    for end in cut_turns(ends, options.turns):
        inside = [span._replace(start=span.start - start, end=span.end - start) for span in clip(spans, start, end)]
        gap = draw.expovariate(1 / options.gap_seconds) if options.gap_seconds > 0 else 0.0
        turns.append(AgentTurn(tuple(ids[start:end]), tuple(inside), gap))
        start = end
    return Agent(name, tuple(turns), tuple(trace.id for trace in traces))


def cut_turns(ends: Sequence[int], most: int) -> list[int]:
    """Choose at most ``most`` of the ends, the last one always, so that the stretches are about equally long.

    Args:
        ends: ascending token positions at which a turn may end.
        most: how many turns there may be.
    """
    inner = ends[:-1]
    wanted = [number * ends[-1] / most for number in range(1, most)]
    chosen = {min(inner, key=lambda end: abs(end - position)) for position in wanted if inner}
    return [*sorted(chosen), ends[-1]]
