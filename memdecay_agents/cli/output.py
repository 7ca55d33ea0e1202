"""What a command writes where: results on stdout, JSON where ``--json`` says, progress and remarks on stderr.

    json_file: JsonFile = None          # the option that every command has
    output = Output("tune", json_file)
    with output.progress() as show: ... show("record", done, total)
    output.save({...}); output.results.print(table)

Progress is shown on terminals only: a log file gets none.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console

from memdecay_agents.errors import ConfigError

SCHEMA_VERSION = 1
"""Of a command's JSON; what it holds beside is the command's own."""

JsonFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--json", metavar="[FILE]", help="Write the result as JSON to this file; without one to stdout."),
]
"""The option of every command."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""Told (stage, done, total)."""


class Output:
    """One run of a command.

    Args:
        command: its name, for the JSON.
        json_file: what ``--json`` said; "-": stdout.
    """

    def __init__(self, command: str, json_file: Path | None) -> None:
        self._command = command
        self._json_file = json_file
        self._to_stdout = json_file is not None and str(json_file) == "-"
        self.results = Console(stderr=self._to_stdout, highlight=False)
        """For people; on stderr where JSON goes to stdout."""
        self.notes = Console(stderr=True, highlight=False)
        """Remarks beside the result."""

    def save(self, value: Mapping[str, Any]) -> None:
        """Write the result as JSON, if that was asked for.

        Raises:
            ConfigError: the file cannot be written.
        """
        if self._json_file is None:
            return
        whole = {"schema_version": SCHEMA_VERSION, "command": self._command, **value}
        text = json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
        if self._to_stdout:
            sys.stdout.write(text)
            return
        try:
            self._json_file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                where=f"--json {self._json_file}", rule=f"it cannot be written: {error}", remedy="Name another file."
            ) from error

    @contextmanager
    def status(self, text: str) -> Iterator[Callable[[str], None]]:
        """A line that says what is being done; gives what changes it."""
        if not self.notes.is_terminal:
            yield lambda line: None
            return
        with self.notes.status(text) as line:
            yield lambda text: line.update(text)

    @contextmanager
    def parts(self) -> Iterator[tuple[Callable[[str], None], Callable[[int, int], None]]]:
        """One bar for work in parts; gives what says what is being done, and what moves the bar (done, all)."""
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        columns = (
            SpinnerColumn(),
            BarColumn(20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[now]}"),
        )
        with Bars(*columns, console=self.notes, disable=not self.notes.is_terminal) as bars:
            task = bars.add_task("", total=None, now="starting")

            def say(line: str) -> None:
                bars.update(task, now=line)

            def move(done: int, total: int) -> None:
                bars.update(task, completed=done, total=total)

            yield say, move

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Bars by stage; gives what moves them."""
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description:8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Bars(*columns, console=self.notes, disable=not self.notes.is_terminal) as bars:
            tasks: dict[str, Any] = {}

            def show(stage: str, done: int, total: int) -> None:
                if stage not in tasks:
                    tasks[stage] = bars.add_task(stage, total=total)
                bars.update(tasks[stage], completed=done, total=total)

            yield show
