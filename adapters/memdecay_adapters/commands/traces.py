"""``memdecay traces``: trace files from public data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memdecay_agents.cli.output import JsonFile, Output

traces = typer.Typer(help="Trace files for evaluation, calibration and tuning.", no_args_is_help=True)


@traces.callback()
def group() -> None:
    """Trace files for evaluation, calibration and tuning."""


@traces.command()
def build(
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("traces"),
    only: Annotated[
        list[str] | None, typer.Option(help="bfcl_multi_turn, bfcl_memory or agentdojo (repeat); default: all.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Replay public data sets against their own tools and write trace files.

    The packages bfcl-eval and agentdojo are fetched from the package index into the cache folder, not into this
    environment.
    """
    from memdecay_adapters.trace_sources.build import SOURCES, build

    output, written = Output("traces build", json_file), {}
    for path in build(only or list(SOURCES), out, lambda line: output.notes.print(line, markup=False)):
        with path.open(encoding="utf-8") as file:
            written[str(path)] = sum(1 for _ in file)
        output.results.print(f"{path}: {written[str(path)]} traces", soft_wrap=True, markup=False)
    output.save({"traces": written})
