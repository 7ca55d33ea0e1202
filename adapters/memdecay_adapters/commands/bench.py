"""``memdecay bench``: measurements against stock vLLM on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from memdecay_adapters.commands.bench_serve import serve
from memdecay_agents.cli.exit_codes import ExitCode
from memdecay_agents.cli.output import JsonFile, Output

bench = typer.Typer(help="Measure against stock vLLM on this machine.", no_args_is_help=True)
bench.command()(serve)


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
    json_file: JsonFile = None,
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
    from memdecay_adapters.bench.engine_bench import EngineBenchOptions, run_engine_bench

    output = Output("bench engine", json_file)
    parts = tuple(chosen.value for chosen in part) if part else EngineBenchOptions.parts
    options = EngineBenchOptions(model=model, dtype=dtype, pairs=pairs, seed=seed, parts=parts)
    with output.status("starting") as say:
        result = run_engine_bench(options, say)
    _tell(output, result.values, result.failed_bounds)


class KernelPart(StrEnum):
    """A part of `memdecay bench kernels`."""

    mass = "mass"
    scores = "scores"
    errors = "errors"
    steps = "steps"


@bench.command()
def kernels(
    json_file: JsonFile = None,
    model: Annotated[str | None, typer.Option(help="Hugging Face id or folder, for the decode steps.")] = None,
    pairs: Annotated[
        int, typer.Option(min=1, max=22, help="Interleaved pairs a ratio; below 15 no bound is claimed.")
    ] = 21,
    seed: Annotated[int, typer.Option(help="Seed of keys, queries and prompts.")] = 0,
    part: Annotated[list[KernelPart] | None, typer.Option(help="Only these parts (repeat); default: all.")] = None,
) -> None:
    """Attention mass, scores and selection, on one thread, against vLLM's own attention over the same cache.

    Ends with 1 when a bound is missed.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # read when the engines and torch start
    from memdecay_adapters.bench.kernel_bench import KernelBenchOptions, run_kernel_bench

    output = Output("bench kernels", json_file)
    parts = tuple(chosen.value for chosen in part) if part else KernelBenchOptions.parts
    options = KernelBenchOptions(model=model, pairs=pairs, seed=seed, parts=parts)
    with output.status("starting") as say:
        result = run_kernel_bench(options, say)
    _tell(output, result.values, result.failed_bounds)


@bench.command()
def recall(
    json_file: JsonFile = None,
    model: Annotated[str | None, typer.Option(help="Hugging Face id or folder.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, bfloat16 or float32.")] = "auto",
    pairs: Annotated[int, typer.Option(min=1, help="Interleaved pairs; below 15 no bound is claimed.")] = 21,
    evicted_tokens: Annotated[int, typer.Option(min=1024, help="That the session has lost.")] = 8192,
    every_tokens: Annotated[int, typer.Option(min=1, help="Of the answers that recall while they are written.")] = 16,
) -> None:
    """What recall from host memory adds to a turn, beside computing its last tokens again.

    Also what a repair takes, and what recall adds to an answer while it is written. Ends with 1 on a missed bound.
    """
    from memdecay_adapters.bench.recall_bench import RecallBenchOptions, run_recall_bench

    output = Output("bench recall", json_file)
    options = RecallBenchOptions(
        model=model, dtype=dtype, pairs=pairs, evicted_tokens=evicted_tokens, every_tokens=every_tokens
    )
    with output.status("starting") as say:
        result = run_recall_bench(options, say)
    _tell(output, result.values, result.failed_bounds)


@bench.command()
def observation(
    traces: Annotated[Path, typer.Option(help="A trace file, JSON Lines.", exists=True, dir_okay=False)],
    json_file: JsonFile = None,
    model: Annotated[str | None, typer.Option(help="Hugging Face id or folder.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Traces, the first that are long enough.")] = 12,
) -> None:
    """What is lost by measuring few layers, every few steps: page orders against all layers and every query."""
    from memdecay_adapters.bench.observation_loss import ObservationOptions, run_observation_bench

    output = Output("bench observation", json_file)
    with output.status("starting") as say:
        values = run_observation_bench(ObservationOptions(traces, model, limit), say)
    output.save(values)
    table = Table(box=None, pad_edge=False)
    for title in values["schedules"][0]:
        table.add_column(title.replace("_", " "))
    for row in values["schedules"]:
        table.add_row(*(str(value) for value in row.values()))
    output.results.print(table)


@bench.command()
def adapters(
    json_file: JsonFile = None,
    model: Annotated[str | None, typer.Option(help="Hugging Face id or folder; its tokenizer and template.")] = None,
    pairs: Annotated[int, typer.Option(min=1, help="Interleaved pairs; below 15 no bound is claimed.")] = 21,
) -> None:
    """Prompts with a region for every token against the plain render and tokenisation; no engine is started.

    Ends with 1 when a bound is missed.
    """
    from memdecay_adapters.bench.adapter_bench import run_adapter_bench

    output = Output("bench adapters", json_file)
    with output.status("prompts"):
        result = run_adapter_bench(model=model, pairs=pairs)
    _tell(output, result.values, result.failed_bounds)


@bench.command()
def chat(
    json_file: JsonFile = None,
    model: Annotated[str | None, typer.Option(help="Hugging Face id or folder.")] = None,
) -> None:
    """What the chat model adds to a warm call of a 1,000-token turn: everything in Python outside the engine.

    Ends with 1 when the bound is missed.
    """
    from memdecay_adapters.bench.chat_overhead import run_chat_overhead
    from memdecay_adapters.engine import MemDecayEngine

    output = Output("bench chat", json_file)
    with output.status("turns of a conversation"), MemDecayEngine(model) as running:
        values = run_chat_overhead(running)
    _tell(output, values, values["failed_bounds"])


def _tell(output: Output, values: dict[str, Any], failed_bounds: Sequence[str]) -> None:
    """Save and show the figures; end with 1 where a bound was missed."""
    output.save(values)
    _print(values, output.results)
    if failed_bounds:
        output.notes.print(f"[bold red]missed[/] {', '.join(failed_bounds)}")
        raise typer.Exit(ExitCode.check_failed)


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
