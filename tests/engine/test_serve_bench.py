"""``memdecay bench serve`` on real engines: a small random model, both engines in processes of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memdecay_adapters.bench.serve_bench import ServeBench
from memdecay_adapters.bench.serve_options import ServeOptions
from tests.engine.random_llama import random_llama

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def test_a_small_pool_serves_all_turns_on_both_engines_and_is_measured_once(tmp_path, model_path, no_engine):
    llama = random_llama(tmp_path / "llama", model_path, vocabulary=49152)
    options = ServeOptions.quick(llama)
    workload = replace(options.workload, turns=2)
    options = replace(options, workload=workload, max_num_seqs=(6,), slices=3, other_lengths=())
    lines: list[str] = []
    bench = ServeBench(options, store=tmp_path / "parts.jsonl", progress=lines.append)
    bench.store.measure("search-25-6", lambda: {"tokens_per_second": 1.0})  # spares two engines
    part = bench.run(["pool-25"]).values["pools"]["25"]
    stock, ours = part["stock"], part["ours"]
    turns = sum(len(agent.turns) for agent in bench._pools.agents)
    for figures in (stock, ours):
        assert figures["turns"] == turns
        assert figures["generated_tokens"] == turns * workload.output_tokens
        assert 1 <= figures["agents_at_once"] <= workload.agents
        assert 0 < figures["peak_pages"] <= part["pool_pages"]
    # sessions under a budget stay: each turn computes its new tokens, and at most what was generated last
    new = sum(len(turn.token_ids) for agent in bench._pools.agents for turn in agent.turns)
    assert ours["computed_prompt_tokens"] <= new + turns
    # a quarter of all tokens cannot hold every conversation's prefix
    assert stock["computed_prompt_tokens"] > new + turns
    assert ours["preemptions"] == 0
    assert len(part["slice_seconds"]["ours"]) == 3
    moved: list[tuple[int, int]] = []
    again = ServeBench(
        options, store=tmp_path / "parts.jsonl", progress=pytest.fail, moved=lambda *how_far: moved.append(how_far)
    )
    assert again.run(["pool-25"]).values["pools"]["25"] == part
    assert moved == [(0, 1), (1, 1)]
