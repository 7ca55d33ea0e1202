"""The program: commands by entry point, errors as one line with an exit code."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from typing import NoReturn

import pytest
import typer
from typer.testing import CliRunner

from memdecay_agents.cli import program
from memdecay_agents.errors import BudgetError, MemDecayError, ModelError


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
@pytest.mark.parametrize(("command", "code"), [("refuse", 2), ("fail", 1), ("speak", 0), ("no-such-command", 2)])
def test_exit_codes_tell_bad_input_from_failure(command, code):
    assert exit_code([command]) == code


@pytest.mark.usefixtures("commands")
def test_errors_are_one_line_and_name_the_remedy(capsys):
    exit_code(["refuse"])
    shown = capsys.readouterr().err
    assert "agent 'a': 5 pages exceed [3]. Raise it. [budget]" in shown
    assert "Traceback" not in shown


@pytest.mark.usefixtures("commands")
def test_debug_shows_the_error_itself():
    with pytest.raises(BudgetError):
        program.main(["--debug", "refuse"])


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


def test_an_error_that_is_not_ours_is_not_hidden(monkeypatch):
    def broken() -> NoReturn:
        raise RuntimeError("bug")

    entry = Entry("break")
    monkeypatch.setattr(entry, "load", lambda: broken)
    monkeypatch.setattr(program.metadata, "entry_points", lambda group: [entry])
    with pytest.raises(RuntimeError, match="bug"):
        program.main(["break"])
