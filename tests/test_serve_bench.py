"""``memdecay bench serve`` without engines: its agents, its kept parts, its table and its picture."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memdecay_adapters.bench.part_store import PartStore
from memdecay_adapters.bench.serve_bench import content_digest
from memdecay_adapters.bench.serve_kvpress import check_interpreter, measure_kvpress
from memdecay_adapters.bench.serve_options import ServeOptions
from memdecay_adapters.bench.serve_picture import draw_growth
from memdecay_adapters.bench.serve_report import crossover, report, slope_per_1k
from memdecay_adapters.bench.serve_workload import Agent, AgentTurn, WorkloadOptions, cut_turns, join_agents
from memdecay_agents.errors import ConfigError, EngineError, TraceError
from memdecay_agents.spans import Span, check_partition
from tests.serve_traces import REGIONS, trace

# ---- agents


@settings(deadline=None)
@given(st.sets(st.integers(1, 5000), min_size=1), st.integers(1, 12))
def test_turns_end_where_the_agent_had_spoken_and_cover_everything(ends, most):
    ends = sorted(ends)
    chosen = cut_turns(ends, most)
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(ends)
    assert chosen[-1] == ends[-1]
    assert len(chosen) <= most


def test_turns_are_about_equally_long():
    assert cut_turns(list(range(10, 1010, 10)), 4) == [250, 500, 750, 1000]


@settings(deadline=None)
@given(st.integers(0, 1000))
def test_agents_are_joined_from_whole_traces_that_nobody_else_has(seed):
    draw = random.Random(seed)
    lengths = [draw.randrange(40, 120) for _ in range(80)]
    options = WorkloadOptions(agents=3, agent_tokens=1000, turns=4, output_tokens=5)
    agents = join_agents((trace(n, tokens) for n, tokens in enumerate(lengths)), options, draw)
    names = [name for agent in agents for name in agent.traces]
    assert len(names) == len(set(names))
    for agent in agents:
        ids = [token for turn in agent.turns for token in turn.token_ids]
        assert len(ids) == sum(lengths[int(name.removeprefix("trace-"))] for name in agent.traces)
        assert 930 <= len(ids) <= 1050
        assert agent.tokens(5) == len(ids) + 5 * len(agent.turns)
        for number, turn in enumerate(agent.turns):
            check_partition(turn.spans, 0, len(turn.token_ids), REGIONS)
            system = [span for span in turn.spans if span.region == "system"]
            assert system == ([Span(0, 10, "system")] if number == 0 else [])


def test_traces_that_run_out_are_an_error():
    with pytest.raises(TraceError, match="do not join to 1000 tokens"):
        join_agents(iter([trace(0, 400)]), WorkloadOptions(agents=1, agent_tokens=1000), random.Random(0))


# ---- kept parts


def test_finished_parts_are_kept_and_torn_lines_and_other_keys_are_not(tmp_path):
    path = tmp_path / "parts.jsonl"
    PartStore(path, "old").measure("steps", lambda: {"x": 0})
    first = PartStore(path, "new")
    assert first.find("steps") is None
    assert first.measure("steps", lambda: {"x": 1}) == {"x": 1}
    first.measure("pool-25", lambda: {"x": 2})
    path.write_text(path.read_text()[:-5])  # killed while it wrote
    second = PartStore(path, "new")
    assert second.measure("steps", lambda: pytest.fail("measured again")) == {"x": 1}
    assert second.measure("pool-25", lambda: {"x": 3}) == {"x": 3}
    assert PartStore(path, "new").find("pool-25") == {"x": 3}
    second.forget("steps")
    second.measure("steps", lambda: {"x": 4})
    second.forget("steps")  # its new values count
    assert "steps" in second
    assert PartStore(path, "new").find("steps") == {"x": 4}


def test_parts_of_other_code_count_when_asked_for_and_are_named(tmp_path):
    path = tmp_path / "parts.jsonl"
    old = PartStore(path, "key", "old")
    old.measure("steps", lambda: {"x": 0})
    old.measure("pool-25", lambda: {"x": 1})
    new = PartStore(path, "key", "new")
    assert new.find("steps") is None
    new.measure("steps", lambda: {"x": 2})
    both = PartStore(path, "key", "new", any_code=True)
    assert (both.find("steps"), both.find("pool-25")) == ({"x": 2}, {"x": 1})
    assert both.of_other_code == {"pool-25": "old"}
    assert PartStore(path, "key", "old", any_code=True).find("steps") == {"x": 0}  # its own first, though older
    both.forget("pool-25")
    assert both.measure("pool-25", lambda: {"x": 3}) == {"x": 3}
    assert both.of_other_code == {}


def test_the_traces_content_counts_and_not_where_they_lie(tmp_path):
    (tmp_path / "a.jsonl").write_text("one")
    (tmp_path / "b.jsonl").write_text("one")
    (tmp_path / "c.jsonl").write_text("two")
    a, b, c = (content_digest(tmp_path / f"{name}.jsonl") for name in "abc")
    assert a == b != c
    with pytest.raises(TraceError, match="cannot be read"):
        content_digest(tmp_path / "none.jsonl")


# ---- kvpress, in an environment of its own


def test_an_interpreter_that_is_not_there_is_named_before_anything_is_measured(tmp_path):
    with pytest.raises(ConfigError, match="there is no such program"):
        check_interpreter(tmp_path / "python")


def interpreter(path, body: str):
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_what_kvpress_measured_becomes_a_ratio_and_its_failure_an_error(tmp_path):
    samples = {"press": [0.1] * 15, "full": [0.2] * 15}
    said = json.dumps({"press": "SnapKVPress", "held_tokens": {"press": 9, "full": 99}, "samples": samples})
    python = interpreter(tmp_path / "python", f"echo loading; echo '{said}'")
    measured = measure_kvpress(python, "folder", ServeOptions(), lambda line: None)
    assert measured["press_vs_full"]["median"] == 0.5
    assert measured["step_seconds"] == {"press": 0.1, "full": 0.2}
    assert measured["held_tokens"]["press"] == 9
    broken = interpreter(tmp_path / "broken", "echo \"ModuleNotFoundError: No module named 'kvpress'\" >&2; exit 1")
    with pytest.raises(EngineError, match="No module named 'kvpress'"):
        measure_kvpress(broken, "folder", ServeOptions(), lambda line: None)


# ---- the table


def ratio(median: float, low: float, high: float, pairs: int = 21) -> dict:
    return {"median": median, "interval": [low, high], "pairs": pairs}


def pool(percent: int, throughput: dict, first_token: dict) -> dict:
    return {
        "percent": percent,
        "budget_tokens": 1024,
        "throughput": throughput,
        "throughput_of_totals": throughput["median"],
        "first_token": first_token,
        "stock": {"decode_tokens_per_second_per_agent": 2.0},
        "ours": {"decode_tokens_per_second_per_agent": 2.0 * throughput["median"]},
    }


PARTS = {
    "steps": {
        "long_budget_vs_stock_short": ratio(1.05, 1.03, 1.08),
        "long_vs_middle_same_budget": ratio(1.07, 1.06, 1.08),
        "step_seconds": {"ours_long": 0.1},
    },
    "steps-stock": {"stock_long_vs_stock_short": ratio(2.0, 1.9, 2.1), "step_seconds": {"stock_long": 0.2}},
    "lengths-1024": {
        "budget_tokens": 1024,
        "points": [
            {
                "tokens": tokens,
                "stock_vs_short": ratio(stock, stock, stock),
                "ours_vs_short": ratio(ours, ours, ours),
                "ours_vs_stock": ratio(ours / stock, 0, 2),
            }
            for tokens, stock, ours in ((1000, 1.0, 1.1), (3000, 1.5, 1.1))
        ],
    },
    "pool-25": pool(25, ratio(1.9, 1.5, 2.0), ratio(0.3, 0.2, 0.4)),
    "pool-100": pool(100, ratio(0.9, 0.8, 1.0), ratio(1.2, 1.1, 1.3)),
    "pool-25-budget-512-tokens-1000": {
        **pool(25, ratio(0.7, 0.6, 0.8), ratio(0.9, 0.8, 1.0)),
        "budget_tokens": 512,
        "agent_tokens": 1000,
        "ours": None,
    },
}


def test_the_table_has_every_key_and_a_bound_is_met_by_the_better_end():
    result = report(ServeOptions(), PARTS.get)
    values = json.loads(json.dumps(result.values))
    assert values["step_ratio_long_budget_vs_stock_1k_bound_met"]  # 1.03, the better end
    assert values["throughput_ratio_vs_stock_25_bound_met"]  # 2.0, the better end
    assert result.failed_bounds == ["step_ratio_long_vs_2k_same_budget"]
    assert values["step_ratio_stock_long_vs_stock_1k"] == 2.0
    assert values["throughput_ratio_vs_stock"] == {"15": None, "25": 1.9, "50": None, "100": 0.9}
    assert values["throughput_ratio_vs_stock_reason"] == dict.fromkeys(("15", "50"), "this part was not measured")
    assert values["ttft_ratio_vs_stock"]["25"] == 0.3
    assert values["step_growth_per_1k_tokens"] == {"1024": 0.0, "stock": 0.25}
    assert values["crossover_pool_percent"] == 92.5
    # the large pool's tokens, waits and answers, the step of the short trace, and short conversations
    assert len(values["losing_cases"]) == 5
    assert "conversations of about 1000 tokens: tokens a second, 0.7 of stock" in " ".join(values["losing_cases"])
    assert values["shorter_conversations"]["25-budget-512-tokens-1000"]["throughput"]["median"] == 0.7
    assert values["shorter_conversations"]["25-budget-1024-tokens-4000"] is None
    assert "0.90 of stock vLLM's tokens a second while one agent is answered" in " ".join(values["losing_cases"])


def test_few_pairs_meet_no_bound_and_what_was_not_measured_is_null_with_a_reason():
    few = {"steps": {**PARTS["steps"], "long_vs_middle_same_budget": ratio(1.0, 0.9, 1.1, pairs=14)}}
    assert report(ServeOptions(), few.get).values["step_ratio_long_vs_2k_same_budget_bound_met"] is False
    nothing = report(ServeOptions(), lambda name: None)
    assert nothing.failed_bounds == []
    for key in (
        "step_ratio_long_budget_vs_stock_1k",
        "step_ratio_stock_long_vs_stock_1k",
        "step_growth",
        "crossover_pool_percent",
    ):
        assert nothing.values[key] is None
        assert nothing.values[f"{key}_reason"]


def test_the_crossover_lies_between_two_pools_or_nowhere():
    assert crossover({15: 3.0, 25: 2.0, 50: 0.5}) == pytest.approx(41.7)
    assert crossover({15: 3.0, 25: 2.0}) is None
    assert crossover({}) is None


def test_the_slope_is_that_of_the_least_squares():
    points = [{"tokens": tokens, "a": ratio(1 + 0.3 * tokens / 1000, 0, 9)} for tokens in (1024, 2048, 7500)]
    assert slope_per_1k(points, "a") == pytest.approx(0.3)


def test_part_names_are_unique_and_each_budget_and_pool_has_its_own():
    names = ServeOptions().part_names()
    assert len(names) == len(set(names))
    assert {"steps", "lengths-512", "search-15-4", "pool-100", "pool-25-budget-2048"} <= set(names)
    assert {"search-25-4-tokens-2000", "pool-25-budget-512-tokens-2000"} <= set(names)


def test_shorter_conversations_are_the_first_part_of_each_turn_and_their_tools_take_as_long():
    spans = (Span(0, 60, "user"), Span(60, 100, "tool_out"))
    agent = Agent("a", (AgentTurn(tuple(range(100)), spans, 2.0), AgentTurn(tuple(range(8)), (), 1.0)), ("t",))
    short = agent.shortened(0.7, gaps=False)
    assert [turn.token_ids for turn in short.turns] == [tuple(range(70)), tuple(range(5))]
    assert short.turns[0].spans == (Span(0, 60, "user"), Span(60, 70, "tool_out"))
    assert [turn.gap_seconds for turn in short.turns] == [2.0, 1.0]
    assert [turn.gap_seconds for turn in agent.shortened(0.5).turns] == [1.0, 0.5]


def test_the_picture(tmp_path):
    curves = report(ServeOptions(), PARTS.get).values["step_growth"]
    curves["1024"][0]["ours_vs_short"]["interval"] = [1.0, 1.2]
    draw_growth(curves, tmp_path / "growth.svg")
    drawn = (tmp_path / "growth.svg").read_text()
    assert drawn.startswith("<?xml")
    with pytest.raises(ConfigError, match="was not measured"):
        draw_growth({}, tmp_path / "none.png")
