"""What is lost by measuring less: orders of pages from recordings."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from memdecay_adapters.bench import observation_loss
from memdecay_adapters.bench.observation_loss import EVERYTHING, POLICIES, SCHEDULES, Schedule, agreement, page_order
from memdecay_adapters.commands.bench import bench
from memdecay_agents import MemDecayConfig
from memdecay_agents.evaluation.recording import AttentionRecording
from memdecay_agents.spans import Span
from tests.adapters.evaluation_inputs import own_trace_file

SPANS = [Span(0, 60, "system"), Span(60, 300, "tool_out"), Span(300, 900, "scratchpad")]


def recording(n: int, seed: int, alike: bool) -> AttentionRecording:
    """Random attention; alike: every query favours the same tokens."""
    rng = np.random.default_rng(seed)
    weights = np.tile(rng.random(n) ** 6, (n, 1)) if alike else rng.random((n, n)) ** 6
    mass = np.tril(weights.astype(np.float32)) + 1e-6 * np.tri(n, dtype=np.float32)
    return AttentionRecording.of(np.arange(n), mass / mass.sum(1, keepdims=True), rng.random(n).astype(np.float32))


@pytest.mark.parametrize("policy", POLICIES)
def test_measuring_everything_loses_nothing_and_less_loses_where_queries_differ(policy):
    config, found = MemDecayConfig(), {}
    for alike in (True, False):
        attention = recording(900, 3, alike)
        truth = page_order(EVERYTHING, attention, SPANS, config, policy)
        assert agreement(truth, page_order(EVERYTHING, attention, SPANS, config, policy)) == (pytest.approx(1), 1)
        less = page_order(Schedule("all", 16, 1), attention, SPANS, config, policy)
        found[alike], _ = agreement(less, truth)
    assert found[True] > 0.9
    if policy == "accumulated_attention":  # the default policy orders by key norms first, and has them all
        assert found[False] < found[True] - 0.1


def test_a_spread_window_ends_with_the_newest_query(monkeypatch):
    asked = []
    real = observation_loss._observation
    monkeypatch.setattr(
        observation_loss, "_observation", lambda *arguments: asked.append(arguments[1]) or real(*arguments)
    )
    page_order(
        Schedule("all", 4, 8, spread=True, decode_window=4),
        recording(900, 0, True),
        SPANS,
        MemDecayConfig(),
        "memdecay",
    )
    prefill, decode = asked[:2], asked[2:]
    assert [queries[-1] for queries in prefill] == [511, 674]
    assert [len(queries) for queries in prefill] == [8, 8]
    assert prefill[0].step == 64
    assert all(len(queries) == 4 and queries.step == 1 for queries in decode)
    assert decode[0] == range(675, 679)


class FakeRecorder:
    """Attention by chance, one for all models."""

    def __init__(self, path, config):
        self.seed = hash(config.observed_layers) % 1000

    def record(self, trace):
        return recording(trace.n_tokens, self.seed, False)


def test_the_command_writes_a_row_a_schedule(tmp_path, monkeypatch, model_path):
    monkeypatch.setattr(observation_loss, "AttentionRecorder", FakeRecorder)
    traces, out = own_trace_file(tmp_path / "t.jsonl", 2), tmp_path / "o.json"
    asked = ["observation", "--traces", str(traces), "--model", model_path, "--json", str(out)]
    shown = CliRunner().invoke(bench, asked)
    assert shown.exit_code == 0, shown.output
    found = json.loads(out.read_text())
    assert found["traces"] == ["t0", "t1"]
    assert [(row["layers"], row["prefill_queries"]) for row in found["schedules"]] == [
        (schedule.layers, schedule.window) for schedule in SCHEDULES
    ]
    assert all(-1 <= row["memdecay_rank_correlation"] <= 1 for row in found["schedules"])
