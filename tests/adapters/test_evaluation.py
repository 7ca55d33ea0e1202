"""Traces as tokens, recordings against transformers, the commands."""

import dataclasses
import json
import os
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from typer.testing import CliRunner

from memdecay_adapters.commands.calibrate import calibrate
from memdecay_adapters.commands.config_options import read_config
from memdecay_adapters.commands.evaluate import evaluate, numbers
from memdecay_adapters.commands.tune import tune
from memdecay_adapters.evaluation import recall_stage
from memdecay_adapters.evaluation.recorder import AttentionRecorder
from memdecay_adapters.evaluation.run import EvaluateOptions, Evaluation
from memdecay_adapters.evaluation.tokenised import tokenise_trace
from memdecay_adapters.evaluation.tune import model_cost
from memdecay_adapters.trace_sources import bfcl
from memdecay_adapters.trace_sources.build import build
from memdecay_agents import REGIONS, MemDecayConfig
from memdecay_agents.calibration import ProfileFile
from memdecay_agents.errors import ConfigError, MemDecayError, TraceError
from memdecay_agents.evaluation.outcomes import FactOutcome
from memdecay_agents.evaluation.synthetic import synthetic_trace
from memdecay_agents.evaluation.trace_files import read_traces
from memdecay_agents.evaluation.variants import variants_of

CONFIG = MemDecayConfig(page_size_tokens=16)
TRACES = os.environ.get("MEMDECAY_TRACES")
needs_traces = pytest.mark.skipif(
    TRACES is None, reason="set MEMDECAY_TRACES to a folder of trace files; `memdecay traces build` makes one"
)


@pytest.fixture(scope="module")
def count_tokens(tokenizer):
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])


def own_trace_file(path: Path, n: int = 4) -> Path:
    rows = []
    for number in range(n):
        messages = [{"role": "system", "content": "You keep the books of a small warehouse and answer briefly."}]
        for order in range(5):
            value = 70000 + 131 * number + 17 * order
            call = {"id": f"a{order}", "name": "place_order", "args": {"amount": order + 3, "item": "drums"}}
            text = json.dumps({"order_id": value, "status": "open", "note": "to be picked up at the north gate"})
            check = {"id": f"b{order}", "name": "check_order", "args": {"order_id": value}}
            messages += [
                {"role": "user", "content": f"Please order {order + 3} more drums and see that it is noted."},
                {"role": "assistant", "content": "I place the order first.", "tool_calls": [call]},
                {"role": "tool", "content": text, "tool_call_id": f"a{order}"},
                {"role": "assistant", "content": "", "tool_calls": [check]},
                {"role": "tool", "content": '{"status": "open"}', "tool_call_id": f"b{order}"},
            ]
        rows.append({"id": f"t{number}", "messages": messages})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("generator", ["planted", "paraphrased"])
def test_facts_lie_where_their_sentences_are_and_regions_are_inferred(tokenizer, count_tokens, generator):
    for seed in range(3):
        trace = synthetic_trace(generator, seed, 450, count_tokens)
        tokens = tokenise_trace(trace, tokenizer, CONFIG)
        assert abs(tokens.n_tokens - 450) < 45
        assert tokens.spans[-1].end == tokens.n_tokens
        assert {span.region for span in tokens.spans} == set(REGIONS)
        for fact, found in zip(trace.facts, tokens.facts, strict=True):
            text = tokenizer.decode(tokens.token_ids[found.start : found.end].tolist())
            assert fact.text in text
            assert len(text) <= len(fact.text) + 6
            assert found.region == fact.id.partition("/")[0]
            assert found.needed_at == tokens.n_tokens


def test_superseded_messages_are_flagged_from_their_successor_on(tokenizer, count_tokens):
    trace = synthetic_trace("planted", 1, 4000, count_tokens)
    tokens = tokenise_trace(trace, tokenizer, CONFIG)
    assert len(tokens.superseded) == len(trace.supersedes) > 0
    for (start, end, since), (new, old) in zip(tokens.superseded, sorted(trace.supersedes.items()), strict=True):
        assert start < end <= since
        assert trace.messages[old]["content"][:20] in tokenizer.decode(tokens.token_ids[start:end].tolist())
        assert trace.messages[new]["content"][:20] in tokenizer.decode(tokens.token_ids[since : since + 30].tolist())


def test_quoted_values_are_needed_when_the_call_begins(tokenizer, tmp_path):
    (trace, *_) = read_traces(own_trace_file(tmp_path / "own.jsonl"))
    tokens = tokenise_trace(trace, tokenizer, CONFIG)
    assert len(tokens.facts) == 5
    for fact in tokens.facts:
        assert fact.region == "tool_out"
        assert fact.end <= fact.needed_at
        after = tokenizer.decode(tokens.token_ids[fact.needed_at : fact.needed_at + 8].tolist())
        assert "check_order" in after


def test_a_fact_that_is_not_there_is_refused(tokenizer, count_tokens):
    trace = synthetic_trace("planted", 1, 450, count_tokens)
    lost = dataclasses.replace(trace.facts[0], text="never said")
    with pytest.raises(TraceError, match="does not occur"):
        tokenise_trace(dataclasses.replace(trace, facts=(lost,)), tokenizer, CONFIG)


# --- recordings -------------------------------------------------------------------------------


def test_a_recording_is_what_transformers_attends_to(random_llama_path, tokenizer, count_tokens, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    config = MemDecayConfig(page_size_tokens=16, observed_layers="all")
    tokens = tokenise_trace(synthetic_trace("planted", 0, 450, count_tokens), tokenizer, CONFIG)
    tokens = dataclasses.replace(tokens, token_ids=tokens.token_ids % 1024)
    recorder = AttentionRecorder(random_llama_path, config, tmp_path)
    recording = recorder.record(tokens)
    model = AutoModelForCausalLM.from_pretrained(random_llama_path, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        out = model(torch.from_numpy(tokens.token_ids)[None], output_attentions=True, use_cache=True)
    expected = torch.stack([layer[0].mean(0) for layer in out.attentions]).mean(0)
    for query in (0, 15, 300, tokens.n_tokens - 1):
        assert np.allclose(recording.row(query), expected[query, : query + 1], rtol=2e-3, atol=1e-6)
    keys = torch.stack([layer.keys[0].norm(dim=-1).mean(0) for layer in out.past_key_values.layers]).mean(0)
    assert np.allclose(recording.key_norms, keys, rtol=1e-4)
    # found again on disk, by content; a broken file is recorded anew
    assert recorder.is_recorded(tokens)
    # another recorder of this process observes other layers, and neither disturbs the other
    other = AttentionRecorder(random_llama_path, CONFIG.model_copy(update={"observed_layers": (0,)}), tmp_path)
    assert not np.array_equal(other.record(tokens).packed, recording.packed)
    recorder.path_of(tokens).write_bytes(b"broken")
    assert np.array_equal(recorder.record(tokens).packed, recording.packed)
    recorder.close()


def test_what_the_model_cannot_read_is_refused(random_llama_path, tmp_path, tokenizer, count_tokens):
    tokens = tokenise_trace(synthetic_trace("planted", 0, 450, count_tokens), tokenizer, CONFIG)
    long = dataclasses.replace(tokens, token_ids=np.zeros(5000, dtype=np.int64))
    with pytest.raises(TraceError, match="at most 4096"):
        AttentionRecorder(random_llama_path, CONFIG, tmp_path).record(long)


# --- all stages -------------------------------------------------------------------------------


@pytest.fixture
def options(random_llama_path, tmp_path):
    return EvaluateOptions(
        model=random_llama_path, seeds=(1000, 1001), lengths=(450,), verify_part=0.0, cache=tmp_path / "cache"
    )


def small_vocabulary(monkeypatch):
    """The random model knows 1,024 ids, its tokenizer more."""
    whole = AttentionRecorder._run

    def run(self, trace):
        folded = dataclasses.replace(trace, token_ids=trace.token_ids % 1024)
        return dataclasses.replace(whole(self, folded), token_ids=trace.token_ids)

    monkeypatch.setattr(AttentionRecorder, "_run", run)


def test_replay_keeps_pins_in_every_cell_and_reports_what_was_asked_for(options, monkeypatch):
    small_vocabulary(monkeypatch)
    seen = []
    result = Evaluation(options, lambda *what: seen.append(what)).run()
    assert {stage for stage, _, _ in seen} == {"record", "replay", "verify"}
    made = json.loads(json.dumps(result.as_json()))
    assert made["replay_agreement"] is None
    cells = made["cells"]
    assert {cell["budget"] for cell in cells} == {0.25, 0.5, 0.75, 1.0}
    assert {(cell["policy"], cell["pinned"]) for cell in cells} == {(v.policy, v.pinned) for v in variants_of()}
    for cell in cells:
        if cell["region"] == "system" and (cell["pinned"] or cell["policy"] == "full"):
            assert cell["survived"] == cell["facts"] == 6
        assert cell["facts"] == 2 * (3 if cell["region"] == "system" else 2)


def test_verification_is_drawn_by_source_and_length(options):
    options = dataclasses.replace(options, seeds=tuple(range(10)), lengths=(450, 600), verify_part=0.1)
    evaluation = Evaluation(options)
    traces = evaluation.traces()
    chosen = evaluation.chosen(traces)
    assert sorted(trace.length for trace in chosen) == [450, 600]
    assert chosen == evaluation.chosen(traces)


@pytest.mark.parametrize(
    "change",
    [{"budgets": ()}, {"budgets": (1.5,)}, {"verify_part": 2.0}, {"seeds": ()}, {"policies": ("nonsense",)}],
)
def test_options_that_make_no_sense_are_refused(options, change):
    with pytest.raises(ConfigError):
        Evaluation(dataclasses.replace(options, **change))


def app(command):
    import typer

    made = typer.Typer()
    made.command()(command)
    return made


def test_the_commands_work_on_any_trace_file(random_llama_path, tmp_path, monkeypatch):
    small_vocabulary(monkeypatch)
    monkeypatch.setenv("MEMDECAY_CACHE", str(tmp_path / "cache"))
    file = own_trace_file(tmp_path / "own.jsonl")
    runner, common = CliRunner(), ["--model", random_llama_path, "--traces", str(file)]
    out, page = tmp_path / "out.json", tmp_path / "page"
    ran = runner.invoke(
        app(evaluate), [*common, "--json", str(out), "--verify", "0", "--budgets", "0.5", "--out", str(page),
                        "--markdown", str(tmp_path / "tables.md"), "--policies", "recency,memdecay"]
    )  # fmt: skip
    assert ran.exit_code == 0, ran.output
    cells = json.loads(out.read_text())["cells"]
    assert {(cell["source"], cell["region"], cell["probes"]) for cell in cells} == {("own", "tool_out", 0)}
    assert {cell["policy"] for cell in cells} == {"recency", "memdecay"}
    assert sorted(path.name for path in page.iterdir()) == ["evaluation.html", "survival.png"]
    assert "| place |" in (tmp_path / "tables.md").read_text()

    profile = tmp_path / "profile.yaml"
    ran = runner.invoke(app(calibrate), [*common, "--out", str(profile), "--unit", "decode_steps",
                                         "--figure", str(tmp_path / "curves.png")])  # fmt: skip
    assert ran.exit_code == 0, ran.output
    assert ProfileFile.load(profile).clock_unit == "decode_steps"
    assert MemDecayConfig.from_profile(profile).clock_unit == "decode_steps"
    assert (tmp_path / "curves.png").exists()

    ran = runner.invoke(
        app(evaluate), [*common, "--json", str(out), "--verify", "0", "--budgets", "0.5", "--profile", str(profile),
                        "--policies", "memdecay,recency"]
    )  # fmt: skip
    assert ran.exit_code == 0, ran.output
    assert json.loads(out.read_text())["profile"] == "profile.yaml"
    half_lives = {
        name: region.half_life_ticks for name, region in ProfileFile.load(profile).nearest(None).regions.items()
    }
    ours, theirs = (Evaluation(EvaluateOptions(profile=profile)).variants[at].config() for at in (-1, 0))
    assert {name: ours.regions[name].half_life_ticks for name in half_lives} == half_lives
    assert theirs == variants_of()[0].config(), "baselines know no profile"
    served = read_config(None, 4096, None, profile)
    assert served == MemDecayConfig.from_profile(profile, default_budget_tokens=4096)

    ran = runner.invoke(app(tune), [*common, "--keep", "0.05"])
    assert ran.exit_code == 0, ran.output
    assert "Proposed: 10% of the trace" in ran.output
    assert "give more traces to rely on it" in ran.output
    assert isinstance(runner.invoke(app(tune), [*common, "--keep", "2"]).exception, MemDecayError)


class FakeVerifier:
    """Answers what it was asked; counts the engines that were started."""

    started: ClassVar[list[str]] = []

    def __init__(self, model, longest_tokens, tier, recall):
        self.started.append(tier)
        self.tier = tier

    def recall(self, trace, variants, askings):
        return [
            FactOutcome(
                trace.source, "recall", trace.length, budget or 1.0, variant.policy, variant.pinned, fact.region,
                trace.id, fact.id, True, correct=True, exact=False, tier=self.tier, asking=asking,
            )
            for variant, budget in variants for fact in trace.facts for asking in askings
        ]  # fmt: skip

    def close(self):
        pass


def test_the_recall_stage_asks_with_and_without_a_tier_and_goes_on_after_an_interruption(
    random_llama_path, tmp_path, monkeypatch
):
    monkeypatch.setattr(recall_stage, "RecallVerifier", FakeVerifier)
    monkeypatch.setattr(FakeVerifier, "started", [])
    monkeypatch.setenv("MEMDECAY_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "out.json"
    arguments = ["--model", random_llama_path, "--tier", "host", "--seeds", "1000-1003", "--lengths", "450",
                 "--budgets", "0.5", "--asking", "verbatim,several", "--json", str(out)]  # fmt: skip
    ran = CliRunner().invoke(app(evaluate), arguments)
    assert ran.exit_code == 0, ran.output
    assert FakeVerifier.started == ["off", "host"]
    made = json.loads(out.read_text())
    assert {(c["stage"], c["policy"], c["tier"], c["asking"]) for c in made["cells"]} == {
        ("recall", policy, tier, asking)
        for policy, tier in (("full", "off"), ("memdecay", "off"), ("memdecay", "host"))
        for asking in ("verbatim", "several")
    }
    assert all(place["correct_ratio"] == 1.0 for place in made["recall"])
    assert "recall: right answers" in ran.output
    assert "verify" not in ran.output
    assert CliRunner().invoke(app(evaluate), arguments).exit_code == 0
    assert FakeVerifier.started == ["off", "host"]
    for wrong in (["--tier", "disk"], ["--asking", "loudly"]):
        assert isinstance(CliRunner().invoke(app(evaluate), wrong).exception, ConfigError)


def test_numbers_of_the_command_line():
    assert numbers("1-3,7", "--seeds") == (1, 2, 3, 7)
    with pytest.raises(ConfigError, match="no number"):
        numbers("a-3", "--seeds")


def test_the_cost_of_a_model_counts_its_matrices(model_path):
    cost = model_cost(model_path)
    # SmolLM2-135M: 106 million weights in 30 layers; 9 heads of 64
    assert cost.per_token == pytest.approx(2 * 106e6, rel=0.01)
    assert cost.per_pair == 4 * 30 * 9 * 64


# --- public data sets -------------------------------------------------------------------------


def test_reference_calls_are_read_without_evaluating_anything():
    class Shop:
        def order(self, item, amount=1):
            if amount > 5:
                raise ValueError("too many")
            return {"item": item, "amount": amount}

    methods = {"order": Shop().order}
    method, positional, named, arguments = bfcl._parsed("order('pears', amount=2)", methods)
    assert arguments == {"item": "pears", "amount": 2}
    assert json.loads(bfcl._result(method, positional, named)) == {"item": "pears", "amount": 2}
    assert bfcl._result(method, ["pears", 9], {}) == "Error during execution: too many"
    for text in ("order(open('x'))", "order(", "__import__('os')", "eval('1')"):
        assert bfcl._parsed(text, methods) is None


def test_unknown_sources_are_refused(tmp_path):
    with pytest.raises(TraceError, match="known are"):
        build(["nonsense"], tmp_path, print)


@needs_traces
def test_the_shared_traces_are_read_with_their_facts(tokenizer):
    expected = {"agentdojo": (60, 39), "bfcl_memory": (2, 36), "bfcl_multi_turn": (158, 242)}
    for name, (n_traces, n_facts) in expected.items():
        traces = read_traces(Path(str(TRACES)) / f"{name}.jsonl")
        assert (len(traces), sum(len(trace.facts) for trace in traces)) == (n_traces, n_facts)
        short = [trace for trace in traces if sum(len(m.get("content") or "") for m in trace.messages) < 3000][:3]
        for trace in short:
            assert len(tokenise_trace(trace, tokenizer, CONFIG).facts) == len(trace.facts)
