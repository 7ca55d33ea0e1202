"""Reading and asking against transformers; calibration; where heads come from."""

import dataclasses
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from memdecay_adapters.commands.calibrate import calibrate
from memdecay_adapters.evaluation.tokenised import tokenise_trace
from memdecay_adapters.models import DEFAULT_MODEL_NAME
from memdecay_adapters.recall import calibrating, heads_for
from memdecay_adapters.recall.calibrating import HeadCalibration, ask, calibrate_heads
from memdecay_adapters.recall.reader import Reader
from memdecay_agents import MemDecayConfig
from memdecay_agents.calibration import ProfileFile
from memdecay_agents.errors import ConfigError, UnsupportedError
from memdecay_agents.evaluation.synthetic import synthetic_trace
from memdecay_agents.recall import RetrievalHead, model_fingerprint, shipped_heads, with_neighbours
from memdecay_agents.recall.choosing import rank_of

SMALL = HeadCalibration(generators=("planted",), lengths=(400,), choose_seeds=(0,), check_seeds=(1,))


@pytest.fixture
def small_vocabulary(monkeypatch):
    """The random model knows 1,024 ids, its tokenizer more."""
    read, ask = Reader.read, Reader.ask
    monkeypatch.setattr(Reader, "read", lambda self, ids: read(self, [one % 1024 for one in ids]))
    monkeypatch.setattr(Reader, "ask", lambda self, ids, *rest: ask(self, [one % 1024 for one in ids], *rest))


def test_questions_see_what_transformers_sees(random_llama_path):
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    text, question = torch.randint(3, 1000, (100,)).tolist(), torch.randint(3, 1000, (9,)).tolist()
    reader, seen = Reader(random_llama_path), {}
    reader.read(text)
    hidden = torch.zeros(100, dtype=torch.bool)
    hidden[16:48] = True
    asked = reader.ask(question, lambda layer, *what: seen.__setitem__(layer, what))
    partly = reader.ask(question, hidden=hidden)
    again = reader.ask(question)
    model = AutoModelForCausalLM.from_pretrained(random_llama_path, dtype=torch.float32, attn_implementation="eager")
    mask = torch.zeros(109, 109).masked_fill(torch.ones(109, 109).triu(1).bool(), float("-inf"))
    with torch.no_grad():
        whole = model(torch.tensor([text + question]), output_attentions=True)
        mask[100:, 16:48] = float("-inf")
        cut = model(torch.tensor([text + question]), attention_mask=mask[None, None])
    assert torch.allclose(asked, whole.logits[0, -1], atol=1e-4)
    assert torch.allclose(partly, cut.logits[0, -1], atol=1e-4)
    assert not torch.allclose(partly, asked, atol=1e-2)
    assert torch.equal(asked, again)
    # what it shows of the last layer gives that layer's attention
    queries, keys, scale = seen[1]
    weights = (queries[:, -1:] @ keys.repeat_interleave(2, 0).transpose(1, 2) * scale).softmax(-1)
    assert torch.allclose(weights[:, 0], whole.attentions[1][0, :, -1], atol=1e-5)


def test_models_that_attend_otherwise_are_refused(random_llama_path):
    reader = Reader(random_llama_path)
    one = torch.zeros(1, 4, 1, 64)
    with pytest.raises(UnsupportedError, match="softcap"):
        reader._attend(None, one, one[:, :2], one[:, :2], None, softcap=30.0)


def test_a_window_hides_what_lies_behind_it(random_llama_path):
    class Module:
        layer_idx = 0

    reader, seen = Reader(random_llama_path), []
    reader._seen = lambda *what: seen.append(what)
    query, key = torch.randn(1, 4, 3, 64), torch.randn(1, 2, 10, 64)
    value = torch.randn(1, 2, 10, 64)
    near, _ = reader._attend(Module, query, key, value, None, sliding_window=4)
    value[:, :, :4] = 1e6
    assert torch.equal(reader._attend(Module, query, key, value, None, sliding_window=4)[0], near)
    assert not seen
    assert not torch.equal(reader._attend(Module, query, key, value, None)[0], near)
    assert len(seen) == 1


@pytest.mark.usefixtures("small_vocabulary")
def test_calibration_chooses_among_the_models_own_heads(random_llama_path):
    told = []
    found = calibrate_heads(random_llama_path, SMALL, lambda *what: told.append(what))
    assert told[-1] == ("heads", 2, 2)
    assert found.fingerprint == model_fingerprint(Path(random_llama_path))
    assert {(head.layer < 2, head.kv_head < 2) for head in found.heads} == {(True, True)}
    assert 2 <= len(found.heads) <= 3
    assert list(found.recall_at.values()) == sorted(found.recall_at.values())
    assert found.questions == 24


@pytest.mark.usefixtures("small_vocabulary")
def test_an_unknown_model_is_calibrated_once_and_says_so(random_llama_path, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(calibrating, "HeadCalibration", lambda: SMALL)
    with caplog.at_level(logging.WARNING):
        found = heads_for(random_llama_path, tmp_path)
    assert "reads 2 texts, 800 tokens" in caplog.text
    monkeypatch.setattr(calibrating, "calibrate_heads", lambda *_: pytest.fail("calibrated again"))
    assert heads_for(random_llama_path, tmp_path) == found
    (kept,) = tmp_path.glob("*.json")
    monkeypatch.setattr(calibrating, "calibrate_heads", lambda *_: found)
    kept.write_text("broken")
    assert heads_for(random_llama_path, tmp_path) == found
    assert kept.read_text() != "broken"


@pytest.mark.usefixtures("small_vocabulary")
def test_the_command_writes_heads_beside_what_a_profile_holds(random_llama_path, tmp_path, monkeypatch):
    monkeypatch.setattr(calibrating, "HeadCalibration", lambda: SMALL)
    monkeypatch.setenv("MEMDECAY_CACHE", str(tmp_path / "cache"))
    app = typer.Typer()
    app.command()(calibrate)
    out, common = tmp_path / "profile.yaml", ["--heads", "--model", random_llama_path]
    ran = CliRunner().invoke(app, [*common, "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    profile = ProfileFile.load(out)
    assert profile.retrieval_heads == heads_for(random_llama_path)
    assert "800 tokens" in ran.output
    assert "layer.kv_head" in ran.output
    region = {"system": {"half_life_ticks": 9.0}}
    context = {"context_tokens": 450, "decay_form": "exponential", "traces": 1, "queries": 5, "regions": region}
    both = {**profile.model_dump(by_alias=True), "contexts": [context], "retrieval_heads": None}
    ProfileFile.model_validate(both).save(out)
    assert CliRunner().invoke(app, [*common, "--out", str(out)]).exit_code == 0
    assert ProfileFile.load(out).retrieval_heads == profile.retrieval_heads
    assert ProfileFile.load(out).contexts[0].context_tokens == 450
    wrong = CliRunner().invoke(app, [*common, "--out", str(out), "--traces", str(out)])
    assert isinstance(wrong.exception, ConfigError)


# --- the default model ------------------------------------------------------------------------


def test_the_default_model_brings_its_heads(model_path, monkeypatch, tmp_path):
    monkeypatch.setattr(calibrating, "calibrate_heads", lambda *_: pytest.fail("calibrated"))
    shipped = shipped_heads(model_path)
    assert shipped is not None
    assert shipped == heads_for(None, tmp_path) == shipped_heads(None) == shipped_heads(DEFAULT_MODEL_NAME)
    assert shipped.fingerprint == model_fingerprint(Path(model_path))
    assert shipped.recall_at[4] >= 0.85


def test_the_shipped_heads_find_facts_that_chose_nothing(model_path, tokenizer):
    """Another domain and other sentences than those that the heads were chosen by."""
    shipped = shipped_heads(model_path)
    reader, config = Reader(model_path), MemDecayConfig(page_size_tokens=16)
    options = dataclasses.replace(SMALL, query_tokens=shipped.query_tokens)
    count = lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])  # noqa: E731
    tokens = tokenise_trace(synthetic_trace("reworded", 5, 450, count), tokenizer, config)
    reader.read(tokens.token_ids.tolist())
    found = []
    for fact in tokens.facts:
        if fact.region != "system":
            asked, heads = ask(reader, tokenizer, tokens, fact, fact.question.stem, options)
            rows = [heads.index((head.layer, head.kv_head)) for head in shipped.heads]
            evidence = with_neighbours(asked.evidence[rows].sum(0), np.arange(asked.evidence.shape[1]))
            found.append(rank_of(evidence, asked.value_page) <= 4)
            assert RetrievalHead(*heads[rows[0]]) == shipped.heads[0]
    assert np.mean(found) >= 0.9
