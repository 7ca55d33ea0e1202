"""The program: commands by entry point, errors as a panel with an exit code."""

from __future__ import annotations

import inspect
import io
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import NoReturn

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from memdecay_agents.cli import program
from memdecay_agents.cli.exit_codes import ExitCode, exit_code_of
from memdecay_agents.cli.output import Output
from memdecay_agents.errors import BudgetError, ConfigError, MemDecayError, ModelError


class Entry:
    """An installed command."""

    def __init__(self, name: str, error: MemDecayError | None = None) -> None:
        self.name = name
        self.error = error

    def load(self) -> object:
        def command(word: str = "nothing") -> None:
            """Say a word."""
            if self.error is not None:
                raise self.error
            typer.echo(f"{self.name} says {word}")

        return command


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> dict[str, Entry]:
    facts = {"where": "agent 'a'", "rule": "5 pages exceed [3]", "remedy": "Raise it."}
    entries = [Entry("speak"), Entry("refuse", BudgetError(**facts)), Entry("fail", ModelError(**facts))]
    monkeypatch.setattr(program.metadata, "entry_points", lambda group: entries if group else [])
    return {entry.name: entry for entry in entries}


def exit_code(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)
    return int(ended.value.code or 0)


@pytest.mark.usefixtures("commands")
def test_commands_come_from_entry_points_with_their_options():
    result = CliRunner().invoke(program.build_app(), ["speak", "--word", "hello"])
    assert result.exit_code == 0
    assert "speak says hello" in result.output


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize(("command", "code"), [("refuse", 2), ("fail", 4), ("speak", 0), ("no-such-command", 2)])
def test_exit_codes_tell_bad_input_from_failure(command, code):
    assert exit_code([command]) == code


@pytest.mark.usefixtures("commands")
def test_errors_are_a_panel_with_where_rule_remedy_and_code(capsys):
    exit_code(["refuse"])
    told = capsys.readouterr()
    assert told.out == ""
    rows = [line.strip("│ ").split(maxsplit=1) for line in told.err.splitlines() if line.startswith("│")]
    assert [(name, text.strip()) for name, text in rows] == [
        ("where", "agent 'a'"),
        ("rule", "5 pages exceed [3]"),
        ("remedy", "Raise it."),
        ("code", "budget"),
    ]


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize("arguments", [["--debug", "refuse"], ["refuse", "--debug"]])
def test_debug_shows_the_traceback_and_ends_with_the_same_code(arguments, capsys):
    assert exit_code(arguments) == exit_code(["refuse"]) == 2
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "BudgetError" in shown


def test_version(capsys):
    assert exit_code(["--version"]) == 0
    assert capsys.readouterr().out.strip() == metadata.version("memdecay-agents")


def test_the_module_is_the_same_program():
    def run(*command: str) -> str:
        done = subprocess.run([sys.executable, *command, "--help"], capture_output=True, text=True, check=True)
        return done.stdout

    module = run("-m", "memdecay_agents")
    script = run("-c", "import sys; sys.argv[0] = 'memdecay'; from memdecay_agents.cli import main; main()")
    assert "demo" in module
    assert "doctor" in module
    assert module.split("\n", 3)[3] == script.split("\n", 3)[3]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [(RuntimeError("bug [x]"), 70, "RuntimeError"), (ImportError("no module", name="torch"), 4, "torch"),
     (KeyboardInterrupt(), 130, None)],
)  # fmt: skip
def test_an_error_that_is_not_ours_is_told_and_is_whole_under_debug(monkeypatch, capsys, error, code, said):
    def broken() -> NoReturn:
        raise error

    entry = Entry("break")
    monkeypatch.setattr(entry, "load", lambda: broken)
    monkeypatch.setattr(program.metadata, "entry_points", lambda group: [entry])
    assert exit_code(["break"]) == code
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    assert shown == "" if said is None else (said in shown and str(error) in shown)
    assert exit_code(["--debug", "break"]) == code
    whole = capsys.readouterr().err
    assert "Traceback" in whole
    assert type(error).__name__ in whole


@pytest.mark.parametrize(
    ("given", "arranged"),
    [
        (["x", "--json"], ["x", "--json", "-"]),
        (["x", "--json", "--model", "m"], ["x", "--json", "-", "--model", "m"]),
        (["x", "--json", "-"], ["x", "--json", "-"]),
        (["x", "--json", "f", "--debug"], ["--debug", "x", "--json", "f"]),
        (["x", "--json", "--debug"], ["--debug", "x", "--json", "-"]),
        (["serve", "--", "--debug", "--json"], ["serve", "--", "--debug", "--json"]),
        (["--json", "--", "f"], ["--json", "-", "--", "f"]),
    ],
)
def test_json_without_a_file_and_debug_anywhere(given, arranged):
    assert program.arranged(given) == arranged


def test_every_error_of_ours_has_an_exit_code_and_the_table_says_what_it_means():
    source = inspect.getsource(ExitCode)
    for code in ExitCode:
        assert f"{code.name} = {code.value}" in source
    known = {exit_code_of(kind(where="w", rule="r", remedy="m")) for kind in MemDecayError.__subclasses__()}
    assert known == {ExitCode.usage, ExitCode.work_failed, ExitCode.unsupported, ExitCode.server}


def written(output: Output, terminal: io.StringIO | None) -> str:
    if terminal is not None:
        output.notes = Console(file=terminal, force_terminal=True, width=80)
    with output.progress() as show:
        show("record", 1, 4)
        show("replay", 2, 2)
    with output.status("starting") as say:
        say("measuring")
    return terminal.getvalue() if terminal is not None else ""


def test_progress_is_for_terminals_and_on_stderr(capsys):
    terminal = io.StringIO()
    assert "1/4" in written(Output("x", None), terminal)
    assert "measuring" in terminal.getvalue()
    written(Output("x", None), None)
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "")


def test_json_goes_to_stdout_alone_or_to_the_file(capsys, tmp_path):
    output = Output("x", Path("-"))
    output.results.print("for people")
    output.save({"value": "é"})
    told = capsys.readouterr()
    assert json.loads(told.out) == {"schema_version": 1, "command": "x", "value": "é"}
    assert told.err == "for people\n"
    Output("x", tmp_path / "f.json").save({"value": 1})
    assert json.loads((tmp_path / "f.json").read_text())["value"] == 1
    with pytest.raises(ConfigError, match="cannot be written"):
        Output("x", tmp_path / "none" / "f.json").save({})
