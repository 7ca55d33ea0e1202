"""`memdecay evaluate`, `calibrate` and `tune` from the command line, on any trace file."""

import json
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from memdecay_adapters.commands.calibrate import calibrate
from memdecay_adapters.commands.config_options import read_config
from memdecay_adapters.commands.evaluate import evaluate, numbers
from memdecay_adapters.commands.tune import tune
from memdecay_adapters.evaluation import recall_stage
from memdecay_adapters.evaluation.run import EvaluateOptions, Evaluation
from memdecay_agents import MemDecayConfig
from memdecay_agents.calibration import ProfileFile
from memdecay_agents.errors import ConfigError, MemDecayError
from memdecay_agents.evaluation.outcomes import FactOutcome
from memdecay_agents.evaluation.variants import variants_of
from tests.adapters.evaluation_inputs import own_trace_file, small_vocabulary


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

    def __init__(self, model, longest_tokens, tier, recall, repair_tokens):
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
