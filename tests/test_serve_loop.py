"""The closed loop of ``memdecay bench serve``, on an engine that is made up."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from memdecay_adapters.bench.serve_loop import ClosedLoop, Slice, joined
from memdecay_adapters.bench.serve_workload import WorkloadOptions, join_agents
from memdecay_agents.spans import check_partition
from tests.serve_traces import REGIONS, trace


class _Request:
    def __init__(self, prompt: list[int], wanted: int) -> None:
        self.prompt, self.wanted = prompt, wanted
        self.output_token_ids: list[int] = []
        self.num_preemptions = 0


class _Output:
    def __init__(self, name: str, request: _Request) -> None:
        self.request_id, self.finished = name, len(request.output_token_ids) == request.wanted
        self.num_cached_tokens = 0
        self.outputs = [SimpleNamespace(token_ids=tuple(request.output_token_ids))]


class MadeUpEngine:
    """Generates one token for each running request in a step; its scheduler, pool and core are itself."""

    num_gpu_blocks = 11

    def __init__(self) -> None:
        self.scheduler = self.kv_cache_manager = self.block_pool = self.engine = self
        self.requests: dict[str, _Request] = {}
        self.prompts: list[tuple[str, int, int]] = []

    @property
    def running(self) -> list[_Request]:
        return list(self.requests.values())

    def get_num_free_blocks(self) -> int:
        return 10 - len(self.requests)

    def add(self, ids, new_tokens, hints, logprobs) -> str:
        name = f"request-{len(self.prompts)}"
        check_partition(hints.spans, 0, len(ids), REGIONS)
        self.prompts.append((hints.session, hints.turn, len(ids)))
        self.requests[name] = _Request(list(ids), new_tokens)
        return name

    def step(self) -> list[_Output]:
        outputs = []
        for name, request in list(self.requests.items()):
            request.output_token_ids.append(7)
            outputs.append(_Output(name, request))
            if outputs[-1].finished:
                del self.requests[name]
        return outputs


@pytest.mark.parametrize("gap_seconds", [0.0, 50.0])
def test_every_turn_extends_its_conversation_and_slices_add_up(gap_seconds):
    options = WorkloadOptions(agents=3, agent_tokens=400, turns=4, output_tokens=6, gap_seconds=gap_seconds)
    agents = join_agents((trace(n, 190) for n in range(9)), options, random.Random(1))
    engine = MadeUpEngine()
    loop = ClosedLoop(engine, agents, 6, None)
    total = 6 * sum(len(agent.turns) for agent in agents)
    slices: list[Slice] = []
    while sum(one.generated_tokens for one in slices) < total:
        slices.append(loop.advance(10))
        done = sum(one.generated_tokens for one in slices)
        assert 10 * len(slices) <= done + 10
        assert done - 10 * len(slices) < 3 or done == total
    figures = joined(slices)
    assert (figures["generated_tokens"], figures["turns"]) == (total, total // 6)
    assert 1 <= figures["agents_at_once"] <= 3
    if gap_seconds:
        assert figures["idle_seconds"] > 1.0  # tools of 50 seconds, and nobody was served meanwhile
    else:
        assert (figures["agents_at_once"], figures["idle_seconds"]) == (3, 0.0)
    for agent in agents:
        length = 0
        for number, turn in enumerate(agent.turns):
            length += len(turn.token_ids)
            assert (agent.name, number, length) in engine.prompts
            length += 6
