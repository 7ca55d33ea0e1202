"""``memdecay traces``: trace files from public data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
) -> None:
    """Replay public data sets against their own tools and write trace files.

    The packages bfcl-eval and agentdojo are fetched from the package index into the cache folder, not into this
    environment.
    """
    from rich.console import Console

    from memdecay_adapters.trace_sources.build import SOURCES, build

    console = Console(stderr=True, highlight=False)
    for path in build(only or list(SOURCES), out, lambda line: console.print(line, markup=False)):
        with path.open(encoding="utf-8") as file:
            console.print(f"{path}: {sum(1 for _ in file)} traces", soft_wrap=True, markup=False)
