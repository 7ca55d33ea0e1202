"""What holds for every command: found by the entry points of this source tree, so that new ones are held to it too."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from memdecay_agents import Ledger, LedgerEntry
from memdecay_agents.cli import program
from memdecay_agents.cli.exit_codes import ExitCode
from memdecay_agents.errors import BudgetError
from tests.server.live import entry_points_beside, environment

ROOT = Path(__file__).parent.parent
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][program.COMMANDS_GROUP]
ENTRIES = [metadata.EntryPoint(name, value, program.COMMANDS_GROUP) for name, value in sorted(DECLARED.items())]


def leaves() -> list[tuple[str, ...]]:
    """The words of every command, those of groups included."""
    found: list[tuple[str, ...]] = []
    for entry in ENTRIES:
        command = entry.load()
        if isinstance(command, typer.Typer):
            names = [one.name or one.callback.__name__.replace("_", "-") for one in command.registered_commands]
            found += [(entry.name, name) for name in names]
        else:
            found.append((entry.name,))
    return found


@pytest.fixture(autouse=True)
def _this_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = metadata.entry_points  # vLLM asks for groups of its own
    monkeypatch.setattr(
        program.metadata,
        "entry_points",
        lambda **asked: ENTRIES if asked.get("group") == program.COMMANDS_GROUP else installed(**asked),
    )


def command_of(words: tuple[str, ...]) -> Any:
    command: Any = typer.main.get_command(program.build_app())
    for word in words:
        command = command.commands[word]
    return command


def needed(command: Any) -> list[str]:
    """Values for what a command cannot do without; files are this one."""
    given: list[str] = []
    for parameter in command.params:
        if parameter.required:
            given += [*parameter.opts[:1], __file__] if parameter.param_type_name == "option" else [__file__]
    return given


@pytest.mark.parametrize("words", leaves(), ids=" ".join)
def test_a_command_has_json_help_and_the_programs_errors(words: tuple[str, ...], monkeypatch: Any, capsys: Any) -> None:
    command = command_of(words)
    (json_option,) = [one for one in command.params if "--json" in one.opts]
    assert json_option.metavar == "[FILE]", "the one option of all commands: memdecay_agents.cli.output.JsonFile"
    for parameter in command.params:
        assert getattr(parameter, "help", None) or parameter.name == "help", f"{parameter.name} is explained"
    assert inspect.getdoc(command.callback)
    assert CliRunner().invoke(program.build_app(), [*words, "--help"]).exit_code == 0
    assert CliRunner().invoke(program.build_app(), [*words, "--no-such-option"]).exit_code == 2

    def fail(*args: Any, **given: Any) -> None:
        raise BudgetError(where="agent 'a'", rule="too small", remedy="Raise it.")

    app = program.build_app()
    built = typer.main.get_command(app)
    target: Any = built
    for word in words:
        target = target.commands[word]
    target.callback = fail
    with pytest.raises(SystemExit) as ended:
        built.main([*words, *needed(command), "--json"], prog_name="memdecay")
    told = capsys.readouterr()
    assert ended.value.code == 2
    assert told.out == ""
    assert "too small" in told.err
    assert "Traceback" not in told.err
    with pytest.raises(SystemExit) as ended:
        built.main([*words, *needed(command), "--debug"], prog_name="memdecay")
    assert ended.value.code == 2
    assert "Traceback" in capsys.readouterr().err


def test_what_is_declared_is_what_the_issue_asks_for() -> None:
    assert DECLARED.keys() >= {
        "demo", "doctor", "evaluate", "calibrate", "tune", "traces", "bench", "serve", "explain",
    }  # fmt: skip


def test_the_readme_has_every_exit_code_and_every_command() -> None:
    text = (ROOT / "README.md").read_text()
    assert [int(code) for code in re.findall(r"^\| (\d+) \| ", text, re.MULTILINE)] == sorted(ExitCode)
    (line,) = re.findall(r"^`memdecay ((?:[a-z-]+ \| )+[a-z-]+)`", text, re.MULTILINE)
    assert set(line.split(" | ")) == DECLARED.keys()


# ---- the program as a process


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return entry_points_beside(tmp_path_factory.mktemp("entry-points"))


def run(path: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "memdecay_agents", *words],
        capture_output=True, text=True, check=False, timeout=120, env={**environment(path), **more},
    )  # fmt: skip


def completed(path: Path, line: str) -> list[str]:
    words = line.split(" ")
    asked = {"_MEMDECAY_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return run(path, **asked).stdout.split()


def test_a_shell_completes_commands_options_and_policies(path: Path) -> None:
    assert "explain" in completed(path, "memdecay ex")
    assert "--message" in completed(path, "memdecay explain --me")
    assert completed(path, "memdecay demo --policy last_") == ["last_query"]
    script = run(path, _MEMDECAY_COMPLETE="source_bash").stdout
    assert "complete" in script
    assert "_MEMDECAY_COMPLETE" in script


def ledger_of(tmp_path: Path) -> Path:
    entry = LedgerEntry(
        session="default/t/a/", agent="a", turn=2, step=31, request_id="r", page=3, token_start=48, token_end=64,
        regions={"tool_out": 16}, region="tool_out", pinned=False, clock_ticks=90, computed_tokens=120, score=0.25,
        parts={"structure": 0.5, "key_norm": -0.25}, order_position=0, reason="over_budget", budget_pages=6,
        keeping_pages=8, lowest_kept=0.75, inside_quota=False, quota=-0.5,
    )  # fmt: skip
    ledger = Ledger()
    ledger.allocated(entry.session, [3])
    ledger.evict(entry)
    ledger.to_jsonl(tmp_path / "ledger.jsonl")
    return tmp_path / "ledger.jsonl"


def test_a_ledger_is_explained_for_people_and_for_scripts(path: Path, tmp_path: Path) -> None:
    ledger = str(ledger_of(tmp_path))
    told = run(path, "explain", ledger, "--token", "50", COLUMNS="200")
    assert told.returncode == 0, told.stderr
    assert "0 of 1 tokens are held; 1 of its 1 pages were freed in turn 2 (over_budget)" in told.stdout
    for said in ("structure +0.500", "outside its quota -0.500", "turn 2, step 31, clock 90", "budget of 128 tokens"):
        assert said in " ".join(told.stdout.split())
    told = run(path, "explain", ledger, "--page", "3", "--json")
    found = json.loads(told.stdout)
    assert (found["schema_version"], found["command"]) == (1, "explain")
    assert found["explanation"]["pages"][0]["freed"]["turn"] == 2
    assert [way["kind"] for way in found["explanation"]["pages"][0]["kept_by"]] == ["budget", "pin", "score"]
    whole = json.loads(run(path, "explain", ledger, "--json").stdout)["session_explanation"]
    assert [page["page"] for page in whole["pages"]] == [3]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["explain", "none.jsonl"], 2, "explain"),
        (["explain", "broken.jsonl"], 2, "ledger_file"),
        (["picture", "broken.jsonl"], 2, "ledger_file"),
        (["explain", "LEDGER", "--page", "1", "--token", "2"], 2, "several questions"),
        (["explain", "LEDGER", "--message", "1"], 2, "a ledger knows no messages"),
        (["explain", "http://127.0.0.1:9", "--session", "t"], 5, "cannot be reached"),
        (["tune", "--traces", "LEDGER", "--keep", "2"], 2, "--keep"),
        (["serve-args", "--config", "none.json"], 2, "cannot be read"),
        (["serve-args", "--profile", "none.yaml"], 2, "memdecay calibrate"),
        (["serve-args", "--host-memory", "2 bottles"], 2, "512MiB"),
        (["serve-args", "--host-disk", "2GiB"], 2, "Give --host-memory too"),
        (["demo", "--profile", "none.yaml"], 2, "memdecay calibrate"),
    ],
)
def test_what_goes_wrong_is_a_panel_and_a_code(
    tmp_path: Path, monkeypatch: Any, capsys: Any, words: list[str], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = str(ledger_of(tmp_path))
    (tmp_path / "broken.jsonl").write_text('{"page": 1}\n', encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        program.main([ledger if word == "LEDGER" else word for word in words])
    assert ended.value.code == code
    told = capsys.readouterr()
    assert said in told.err, told.err
    assert told.out == ""
    assert os.linesep + "╰" in told.err
