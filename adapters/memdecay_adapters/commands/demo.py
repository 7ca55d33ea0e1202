"""``memdecay demo``: a LangGraph agent under a budget far below its trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memdecay_adapters.commands.completion import complete_policy
from memdecay_adapters.commands.config_options import Profile
from memdecay_agents.cli.output import JsonFile, Output


def demo(
    model: Annotated[str | None, typer.Option(help="Hugging Face id or folder; default: SmolLM2-135M.")] = None,
    budget: Annotated[int, typer.Option(help="Budget of an agent in tokens; the planner gets three quarters.")] = 768,
    policy: Annotated[
        str, typer.Option(help="Eviction policy; 'full' evicts nothing.", autocompletion=complete_policy)
    ] = "memdecay",
    profile: Profile = None,
    json_file: JsonFile = None,
    out: Annotated[Path, typer.Option(help="Folder for the ledger and the picture.")] = Path("memdecay-demo"),
) -> None:
    """Run a LangGraph agent with real tools under a budget, and ask what it still knows."""
    from memdecay_adapters.demo.run import DemoOptions, run_demo

    output = Output("demo", json_file)
    options = DemoOptions(model=model, budget_tokens=budget, policy=policy, profile=profile, output_folder=out)
    output.save(run_demo(options, output.results))
