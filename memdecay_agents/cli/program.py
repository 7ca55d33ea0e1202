"""The program ``memdecay``: collects the commands, turns our errors into messages and exit codes.

Exit codes: 0 success; 1 a check failed or the work did; 2 bad input (also typer's own usage errors).
"""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Annotated

import typer
from rich.console import Console

from memdecay_agents.errors import (
    BudgetError,
    ConfigError,
    HintsError,
    MemDecayError,
    RegionError,
    SpanError,
    TagError,
    TraceError,
)

COMMANDS_GROUP = "memdecay.commands"
EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2
_BAD_INPUT = (ConfigError, BudgetError, RegionError, SpanError, TagError, HintsError, TraceError)


def build_app() -> typer.Typer:
    """The program with all installed commands, each loaded when the program starts."""
    app = typer.Typer(
        name="memdecay",
        help="Region-aware KV-cache eviction for LangGraph agents on vLLM.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def options(
        debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
        version: Annotated[
            bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
        ] = False,
    ) -> None:
        """Options before the command."""

    for entry in sorted(metadata.entry_points(group=COMMANDS_GROUP), key=lambda entry: entry.name):
        command = entry.load()
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=entry.name)
        else:
            app.command(name=entry.name)(command)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(metadata.version("memdecay-agents"))
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """Run the program and exit.

    Args:
        arguments: as on the command line; None: the process's own.
    """
    given = sys.argv[1:] if arguments is None else arguments
    try:
        build_app()(args=given)
    except MemDecayError as error:
        if "--debug" in given:
            raise
        Console(stderr=True, highlight=False).print(f"[bold red]error[/] {_escaped(str(error))}", soft_wrap=True)
        sys.exit(EXIT_BAD_INPUT if isinstance(error, _BAD_INPUT) else EXIT_FAILURE)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
