"""``memdecay bench``: measurements against stock vLLM on this machine."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

bench = typer.Typer(help="Measure against stock vLLM on this machine.", no_args_is_help=True)


class Part(StrEnum):
    """A part of `memdecay bench engine`."""

    steps = "steps"
    turns = "turns"
    agents = "agents"
    exact = "exact"


@bench.callback()
def group() -> None:
    """Measure against stock vLLM on this machine."""


@bench.command()
def engine(
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    model: Annotated[str | None, typer.Option(help="Hugging Face id or folder.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, bfloat16 or float32.")] = "auto",
    pairs: Annotated[
        int, typer.Option(min=1, max=22, help="Interleaved pairs a ratio; below 15 no bound is claimed.")
    ] = 21,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 0,
    part: Annotated[list[Part] | None, typer.Option(help="Only these parts (repeat); default: all.")] = None,
) -> None:
    """Decode steps, turns, agents at once and exactness, in interleaved pairs with stock vLLM.

    Ends with 1 when a bound is missed.
    """
    from memdecay_adapters.bench.engine_bench import EngineBenchOptions, run_engine_bench, save

    console = Console(stderr=True)
    parts = tuple(chosen.value for chosen in part) if part else EngineBenchOptions.parts
    options = EngineBenchOptions(model=model, dtype=dtype, pairs=pairs, seed=seed, parts=parts)
    with console.status("starting") as status:
        result = run_engine_bench(options, lambda line: status.update(line))
    if json_file is not None:
        save(result, json_file)
    _print(result.values, Console())
    if result.failed_bounds:
        console.print(f"[bold red]missed[/] {', '.join(result.failed_bounds)}")
        raise typer.Exit(1)


@bench.command()
def adapters(
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    model: Annotated[str | None, typer.Option(help="Hugging Face id or folder; its tokenizer and template.")] = None,
    pairs: Annotated[int, typer.Option(min=1, help="Interleaved pairs; below 15 no bound is claimed.")] = 21,
) -> None:
    """Prompts with a region for every token against the plain render and tokenisation; no engine is started.

    Ends with 1 when a bound is missed.
    """
    from memdecay_adapters.bench.adapter_bench import run_adapter_bench, save

    result = run_adapter_bench(model=model, pairs=pairs)
    if json_file is not None:
        save(result, json_file)
    _print(result.values, Console())
    if result.failed_bounds:
        raise typer.Exit(1)


def _print(values: dict[str, Any], console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("figure", "value", "95 % interval", "bound"):
        table.add_column(title)
    for key, value in values.items():
        if key.endswith(("_interval", "_bound", "_bound_met", "_pairs")):
            continue
        interval = values.get(f"{key}_interval")
        bound = values.get(f"{key}_bound")
        met = "" if bound is None else f"{bound} {'met' if values[f'{key}_bound_met'] else 'MISSED'}"
        shown = json.dumps(value) if isinstance(value, (dict, list)) else str(value)
        table.add_row(key, shown, "" if interval is None else f"{interval[0]} to {interval[1]}", met)
    console.print(table)
