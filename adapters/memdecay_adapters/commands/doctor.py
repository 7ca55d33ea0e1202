"""``memdecay doctor``: can this machine run the embedded engine, and what to change if not."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from memdecay_adapters.diagnosis import Finding, run_checks
from memdecay_agents.cli.exit_codes import ExitCode
from memdecay_agents.cli.output import JsonFile, Output

_MARK = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "failed": "[bold red]failed[/]"}


def doctor(
    model: Annotated[str | None, typer.Option(help="Check this model (id or folder); none: the default one.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Check Python, vLLM, backend, compiler, kernels, memory, threads and the model; say what to change.

    Ends with 1 when a check failed.
    """
    output = Output("doctor", json_file)
    with output.status("looking"):
        findings = run_checks(model)
    output.save({"findings": [vars(finding) for finding in findings]})
    _print(findings, output.results)
    if any(finding.status == "failed" for finding in findings):
        raise typer.Exit(ExitCode.check_failed)


def _print(findings: list[Finding], console: Console) -> None:
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in ("check", "", "found", "what to do"):
        table.add_column(title, overflow="fold")
    for finding in findings:
        table.add_row(finding.check, _MARK[finding.status], Text(finding.found), Text(finding.remedy))
    console.print(table)
