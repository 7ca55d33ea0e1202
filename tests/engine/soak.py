"""The chaos of `test_chaos`, for long: thousands of operations and evictions, flat memory, no page lost.

    make soak ARGS="--seed 7 --operations 5000"

Memory: the resident set is sampled after every operation. The first third of the samples is warm-up; the medians of the
other two thirds may differ by `MOST_GROWTH_MIB`. The ledger and its accounts keep a bounded history, which is made
small here, so that it is full before the measuring begins.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

MOST_GROWTH_MIB = 8.0
"""Between the median of the middle third and the median of the last."""
LEDGER_ENTRIES = 500
OPERATIONS_A_ROUND = 150
"""After so many operations A, B, A is run, everything ends, and every page must be back."""


def soak(
    operations: Annotated[int, typer.Option(help="Operations at least.", min=1)] = 2_000,
    evictions: Annotated[int, typer.Option(help="Evicted pages at least.", min=1)] = 10_000,
    seed: Annotated[int, typer.Option(help="Of the operations and their numbers.")] = 0,
    tier: Annotated[bool, typer.Option(help="With a host tier and recall.")] = True,
    answers: Annotated[bool, typer.Option(help="Recall at each token of an answer, too.")] = False,
    json_file: Annotated[Path, typer.Option("--json", help="Where the figures go.")] = Path("soak.json"),
) -> None:
    """Do random things to a real engine until enough has happened; exit with 1 if any bound is missed."""
    console = Console()
    began = time.monotonic()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from memdecay_adapters.models import resolve_model
    from tests.engine.chaos import Chaos
    from tests.engine.chaos_engine import ANSWERS_TOO, PAGE, TIER, chaos_engine, small_ledger
    from tests.engine.chaos_ranges import draw
    from tests.engine.oracle import Oracle
    from tests.engine.random_llama import random_llama

    with tempfile.TemporaryDirectory() as folder:
        model = random_llama(Path(folder) / "model", tokenizer_from=resolve_model(None))
        engine = chaos_engine(model, (ANSWERS_TOO if answers else TIER) if tier else None)
        try:
            small_ledger(engine, LEDGER_ENTRIES)
            chaos = Chaos(engine, Oracle(model))
            resident_mib: list[float] = []
            done, leaked_blocks, numbers = 0, 0, random.Random(seed)

            def evicted() -> int:
                return chaos.stepped.look(lambda llm, internals: internals.controller.ledger.summary().evicted)

            columns = (TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            with Progress(*columns, console=console) as progress:
                bars = (
                    progress.add_task("operations", total=operations),
                    progress.add_task("evictions", total=evictions),
                )
                while done < operations or evicted() < evictions:
                    for _ in range(OPERATIONS_A_ROUND):
                        name, drawn = draw(chaos, numbers)
                        chaos.do(name, **drawn)
                        done += 1
                        resident_mib.append(_resident_mib())
                        progress.update(bars[0], completed=done)
                    chaos.same_twice(text=done, length=300, other_length=200)
                    leaked_blocks += chaos.reset()
                    progress.update(bars[1], completed=evicted())
            start_mib, end_mib = memory_levels(resident_mib)
            figures: dict[str, Any] = {
                "schema_version": 1,
                "versions": {
                    "python": platform.python_version(),
                    **{name.replace("-", "_"): version(name) for name in ("torch", "memdecay-agents")},
                    "vllm": engine.vllm_version,
                },
                "machine": {"cpu_count": os.cpu_count(), "platform": platform.platform()},
                "page_size_tokens": PAGE,
                "chaos_operations": done,
                "soak_evictions": evicted(),
                "leaked_blocks": leaked_blocks,
                "restored_pages": chaos.stepped.look(
                    lambda llm, internals: internals.controller.ledger.summary().restored
                ),
                "rss_start_mib": round(start_mib, 2),
                "rss_end_mib": round(end_mib, 2),
                "rss_growth_mib": round(end_mib - start_mib, 2),
                "rss_growth_bound_mib": MOST_GROWTH_MIB,
                "operations": dict(sorted((chaos.counts + chaos.invariants.begun).items())),
                "preemptions": engine.pool_stats().preemptions,
                "parked_sessions": engine.pool_stats().parked_sessions,
                "max_abs_dlogprob": chaos.invariants.worst_distance,
                "seed": seed,
                "seconds": round(time.monotonic() - began, 1),
            }
        except BaseException:
            if "chaos" in locals():
                console.print("\n".join(["the operations of the round that failed:", *chaos.trace]), markup=False)
            raise
        finally:
            engine.close()
    json_file.write_text(json.dumps(figures, indent=2) + "\n")
    console.print_json(data=figures)
    missed = missed_bounds(figures, operations, evictions)
    for bound in missed:
        console.print(f"missed: {bound}", markup=False)
    raise typer.Exit(1 if missed else 0)


def memory_levels(resident_mib: Sequence[float]) -> tuple[float, float]:
    """Medians of the middle and of the last third of the samples, in MiB."""
    third = max(len(resident_mib) // 3, 1)
    return statistics.median(resident_mib[-2 * third : -third] or resident_mib), statistics.median(
        resident_mib[-third:]
    )


def missed_bounds(figures: dict[str, Any], operations: int, evictions: int) -> list[str]:
    """What a soak had to show and did not."""
    bounds = [
        (figures["chaos_operations"] >= operations, f"at least {operations} operations"),
        (figures["soak_evictions"] >= evictions, f"at least {evictions} evictions"),
        (figures["leaked_blocks"] == 0, "no leaked block"),
        (figures["rss_growth_mib"] <= MOST_GROWTH_MIB, f"memory grows by at most {MOST_GROWTH_MIB} MiB"),
        (figures["preemptions"] > 0, "a preemption"),
    ]
    return [rule for holds, rule in bounds if not holds]


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    typer.run(soak)
