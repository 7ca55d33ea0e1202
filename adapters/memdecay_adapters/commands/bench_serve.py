"""``memdecay bench serve``: many agents on one pool, against stock vLLM."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from memdecay_agents.cli.exit_codes import ExitCode
from memdecay_agents.cli.output import JsonFile, Output

if TYPE_CHECKING:
    from memdecay_adapters.bench.serve_report import ServeResult


def serve(
    json_file: JsonFile = None,
    model: Annotated[str | None, typer.Option(help="Hugging Face id or folder.")] = None,
    traces: Annotated[
        list[Path] | None,
        typer.Option(help="A trace file (repeat for more); default: made-up traces.", exists=True, dir_okay=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the agents and prompts.")] = 0,
    part: Annotated[
        list[str] | None,
        typer.Option(help="Only parts whose names begin so (repeat): steps, lengths-, search-, pool-25, kvpress."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the growth of the step with the trace, PNG or SVG.")] = None,
    kvpress_python: Annotated[
        Path | None, typer.Option(help="Interpreter of an environment with kvpress, to compare with it too.")
    ] = None,
    store: Annotated[Path | None, typer.Option(help="File of finished parts; default: in the cache folder.")] = None,
    fresh: Annotated[bool, typer.Option(help="Measure again what was finished.")] = False,
    any_version: Annotated[
        bool, typer.Option(help="Count what other versions of the code have finished too; the result names it.")
    ] = False,
    quick: Annotated[bool, typer.Option(help="A smoke test in a few minutes: its figures say nothing.")] = False,
) -> None:
    """Agents with tools on one pool: throughput, waits and step times, in interleaved slices with stock vLLM.

    A pool takes 10 to 20 minutes on one busy core; what is finished is kept, and the same command goes on. Ends with
    1 when a bound is missed.
    """
    from memdecay_adapters.bench.serve_bench import ServeBench
    from memdecay_adapters.bench.serve_options import ServeOptions

    output = Output("bench serve", json_file)
    options = ServeOptions.quick(model, seed) if quick else ServeOptions(model=model).with_seed(seed)
    options = replace(options, workload=replace(options.workload, trace_files=tuple(traces or ())))
    with output.parts() as (say, move):

        def show(line: str) -> None:
            say(line)
            if not output.notes.is_terminal:  # a log
                output.notes.print(f"{datetime.now():%H:%M:%S} {line}", markup=False)

        bench = ServeBench(
            options,
            store=store,
            fresh=fresh,
            any_code=any_version,
            kvpress_python=kvpress_python,
            progress=show,
            moved=move,
        )
        result = bench.run(part or ())
    output.save(result.values)
    if plot is not None:
        from memdecay_adapters.bench.serve_picture import draw_growth

        draw_growth(result.values["step_growth"] or {}, plot)
    _print(result, output.results)
    if result.failed_bounds and not quick:
        output.notes.print(f"[bold red]missed[/] {', '.join(result.failed_bounds)}")
        raise typer.Exit(ExitCode.check_failed)


def _print(result: ServeResult, console: Console) -> None:
    values = result.values
    ratios = Table(box=None, pad_edge=False)
    for title in ("ratio to stock vLLM", "median", "95 % interval", "bound"):
        ratios.add_column(title)
    for key, value in values.items():
        if f"{key}_pairs" in values:
            bound = values.get(f"{key}_bound")
            met = "" if bound is None else f"{bound} {'met' if values[f'{key}_bound_met'] else 'MISSED'}"
            low, high = values[f"{key}_interval"]
            ratios.add_row(key, str(value), f"{low} to {high}", met)
    console.print(ratios)
    pools = Table(box=None, pad_edge=False)
    for title in (
        "pool",
        "of each",
        "budget",
        "engine",
        "tokens/s",
        "first token s",
        "at once",
        "preempted",
        "peak pages",
    ):
        pools.add_column(title)
    for part in (
        *values["pools"].values(),
        *values["other_budgets"].values(),
        *values["shorter_conversations"].values(),
    ):
        for engine in ("stock", "ours") if part else ():
            pools.add_row(*_pool_row(part, engine))
    console.print(pools)
    growth = Table(box=None, pad_edge=False)
    for title in ("trace tokens", "budget", "stock vLLM / short", "ours / short", "ours / stock vLLM"):
        growth.add_column(title)
    for budget, points in (values["step_growth"] or {}).items():
        for point in points:
            shown = (point[key]["median"] for key in ("stock_vs_short", "ours_vs_short", "ours_vs_stock"))
            growth.add_row(str(point["tokens"]), budget, *map(str, shown))
    console.print(growth)
    if kvpress := values["kvpress"]:
        seconds, held = kvpress["step_seconds"], kvpress["held_tokens"]
        console.print(
            f"transformers + kvpress, decode step: {seconds['press']} s holding {held['press']} tokens "
            f"({kvpress['press']}), {seconds['full']} s holding {held['full']}"
        )
    other = values["parts_of_other_code"]
    for code in sorted(set(other.values())):
        names = ", ".join(name for name in other if other[name] == code)
        console.print(f"measured by another version of the code ({code}): {names}", markup=False)
    for line in values["losing_cases"]:
        console.print(f"slower than stock vLLM: {line}", markup=False)


def _pool_row(part: dict[str, Any], engine: str) -> tuple[str, ...]:
    figures = part[engine]
    return (
        f"{part['percent']} %",
        f"{part['agent_tokens']} tokens",
        str(part["budget_tokens"]) if engine == "ours" else f"{part['stock_max_num_seqs']} seqs",
        engine,
        str(figures["tokens_per_second"]),
        str(figures["first_token_seconds_median"]),
        str(figures["agents_at_once"]),
        str(figures["preemptions"]),
        f"{figures['peak_pages']} of {part['pool_pages']}",
    )
