"""An evaluation's parts in Python: recordings against transformers, replay, what is verified, what a model costs."""

import dataclasses
import json

import numpy as np
import pytest

from memdecay_adapters.evaluation.recorder import AttentionRecorder
from memdecay_adapters.evaluation.run import EvaluateOptions, Evaluation
from memdecay_adapters.evaluation.tokenised import tokenise_trace
from memdecay_adapters.evaluation.tune import model_cost
from memdecay_agents import MemDecayConfig
from memdecay_agents.errors import ConfigError, TraceError
from memdecay_agents.evaluation.synthetic import synthetic_trace
from memdecay_agents.evaluation.variants import variants_of
from tests.adapters.evaluation_inputs import CONFIG, small_vocabulary

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
    [
        {"budgets": ()},
        {"budgets": (1.5,)},
        {"verify_part": 2.0},
        {"seeds": ()},
        {"policies": ("nonsense",)},
        {"shortest_tokens": 5000},
    ],
)
def test_options_that_make_no_sense_are_refused(options, change):
    with pytest.raises(ConfigError):
        Evaluation(dataclasses.replace(options, **change))


def test_traces_of_files_are_chosen_by_length_and_what_is_left_out_is_named(options, tokenizer, tmp_path):
    path = tmp_path / "own.jsonl"
    messages = [{"role": "user", "content": "pear " * n} for n in (40, 400, 4000)]
    path.write_text("".join(json.dumps({"id": f"t{n}", "messages": [m]}) + "\n" for n, m in enumerate(messages)))
    chosen = dataclasses.replace(options, generators=(), trace_files=(path,), shortest_tokens=200, longest_tokens=2000)
    evaluation = Evaluation(chosen)
    assert [trace.id for trace in evaluation.traces(facts_needed=False)] == ["t1"]
    short, long = evaluation.skipped
    assert "t0" in short
    assert "fewer than 200" in short
    assert "t2" in long
    assert "at most" in long


def test_what_agents_say_is_superseded_can_be_left_out(options):
    said, unsaid = (Evaluation(dataclasses.replace(options, supersedes=flag)) for flag in (True, False))
    assert {v.supersedes for v in said.variants} == {True}
    assert {v.supersedes for v in unsaid.variants} == {False}
    (trace, _) = said.traces()
    assert said._key(trace) != unsaid._key(trace), "what was verified with flags is no answer without them"
    assert unsaid.about([trace], [])["supersedes"] is False


def test_the_cost_of_a_model_counts_its_matrices(model_path):
    cost = model_cost(model_path)
    # SmolLM2-135M: 106 million weights in 30 layers; 9 heads of 64
    assert cost.per_token == pytest.approx(2 * 106e6, rel=0.01)
    assert cost.per_pair == 4 * 30 * 9 * 64
