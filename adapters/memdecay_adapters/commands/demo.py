"""``memdecay demo``: a LangGraph agent under a budget far below its trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def demo(
    model: Annotated[str | None, typer.Option(help="Hugging Face id or folder; default: SmolLM2-135M.")] = None,
    budget: Annotated[int, typer.Option(help="Budget of an agent in tokens; the planner gets three quarters.")] = 768,
    policy: Annotated[str, typer.Option(help="Eviction policy; 'full' evicts nothing.")] = "memdecay",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the result to this file ('-': stdout).")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the ledger and the picture.")] = Path("memdecay-demo"),
) -> None:
    """Run a LangGraph agent with real tools under a budget, and ask what it still knows."""
    from rich.console import Console

    from memdecay_adapters.demo.run import DemoOptions, run_demo

    to_stdout = json_file is not None and str(json_file) == "-"
    console = Console(stderr=to_stdout, highlight=False)
    report = run_demo(DemoOptions(model=model, budget_tokens=budget, policy=policy, output_folder=out), console)
    text = json.dumps(report, indent=1)
    if to_stdout:
        typer.echo(text)
    elif json_file is not None:
        json_file.write_text(text + "\n")
