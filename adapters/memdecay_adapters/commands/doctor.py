"""``memdecay doctor``: can this machine run the embedded engine, and what to change if not."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from memdecay_adapters.diagnosis import Finding, run_checks

_MARK = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "failed": "[bold red]failed[/]"}


def doctor(
    model: Annotated[str | None, typer.Option(help="Also check this model (id or folder).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check Python, vLLM, the backend, the model, memory and threads; say what to change."""
    findings = run_checks(model)
    if as_json:
        typer.echo(json.dumps({"schema_version": 1, "findings": [vars(finding) for finding in findings]}, indent=1))
    else:
        _print(findings)
    if any(finding.status == "failed" for finding in findings):
        raise typer.Exit(1)


def _print(findings: list[Finding]) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("check", "", "found", "what to do"):
        table.add_column(title, overflow="fold")
    for finding in findings:
        table.add_row(finding.check, _MARK[finding.status], finding.found, finding.remedy)
    Console().print(table)
