"""The program ``memdecay``: collects the commands, turns errors into panels and exit codes (see `exit_codes`)."""

from __future__ import annotations

import errno
import traceback
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from memdecay_agents.cli.exit_codes import ExitCode, exit_code_of
from memdecay_agents.cli.problems import show_problem

COMMANDS_GROUP = "memdecay.commands"
NAME = "memdecay"


class Program(TyperGroup):
    """The commands, and what is the same for all: ``--debug``, ``--json`` without a file, errors, interruption."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See the base class; `arranged` options first."""
        return super().parse_args(ctx, arranged(args))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error ends with its exit code and a panel, or a traceback under ``--debug``."""
        debug = ctx.params.get("debug")
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            if debug:
                traceback.print_exc()
            raise typer.Exit(ExitCode.interrupted) from None
        except Exception as error:  # whatever it is ends as a panel and an exit code; --debug shows it whole
            ends_well = isinstance(error, typer.Abort) or hasattr(error, "exit_code")  # what typer itself says
            closed_pipe = isinstance(error, OSError) and error.errno == errno.EPIPE
            if ends_well or closed_pipe:
                raise
            if debug:
                traceback.print_exc()
            else:
                show_problem(error)
            raise typer.Exit(exit_code_of(error)) from None


def arranged(args: list[str]) -> list[str]:
    """Arguments as typer wants them: ``--debug`` first wherever it stands, and "-" after a ``--json`` without a file.

    What stands behind ``--`` is left alone.
    """
    end = args.index("--") if "--" in args else len(args)
    ours, rest = args[:end], args[end:]
    debug = ["--debug"] if "--debug" in ours else []
    found: list[str] = []
    for place, word in enumerate(ours):
        if word == "--debug":
            continue
        found.append(word)
        following = next((other for other in ours[place + 1 :] if other != "--debug"), None)
        if word == "--json" and (following is None or (following.startswith("-") and following != "-")):
            found.append("-")
    return [*debug, *found, *rest]


def build_app() -> typer.Typer:
    """The program with all installed commands, each loaded when the program starts."""
    app = typer.Typer(
        name=NAME,
        cls=Program,
        help="Region-aware KV-cache eviction for LangGraph agents on vLLM.",
        epilog="Exit codes: " + ", ".join(f"{code.value} {code.name.replace('_', ' ')}" for code in ExitCode) + ".",
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
    build_app()(args=arguments, prog_name=NAME)
