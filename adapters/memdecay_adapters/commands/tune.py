"""``memdecay tune``: a budget and a profile for an agent's own traces, with the evidence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memdecay_agents.cli.exit_codes import ExitCode
from memdecay_agents.cli.output import JsonFile, Output
from memdecay_agents.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from memdecay_adapters.evaluation.tune import TuneResult
    from memdecay_agents.evaluation.tuning import Balance


def tune(
    traces: Annotated[
        list[Path], typer.Option(help="A trace file of your agent (repeat for more).", exists=True, dir_okay=False)
    ],
    keep: Annotated[float, typer.Option(help="Part of the facts at risk that has to survive.")] = 0.95,
    model: Annotated[str | None, typer.Option(help="Hugging Face id or folder; default: SmolLM2-135M.")] = None,
    most_traces: Annotated[int | None, typer.Option(min=1, help="Traces read of each file.")] = None,
    longest: Annotated[int, typer.Option(min=1, help="Longer traces are left out (tokens).")] = 4096,
    profile: Annotated[Path | None, typer.Option(help="Write the calibrated profile here, if it is proposed.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Propose the smallest budget that keeps what later calls quote or probes ask for.

    Chosen on every other trace, shown on the others. Ends with 1 where no budget keeps enough.
    """
    from memdecay_adapters.evaluation.tune import run_tune

    if not 0.0 < keep <= 1.0:
        raise ConfigError(where="--keep", rule=f"{keep} is no part", remedy="Give a number above 0 and up to 1.")
    output = Output("tune", json_file)
    with output.progress() as show:
        result = run_tune(
            tuple(traces), keep, model=model, most_traces=most_traces, longest_tokens=longest, progress=show
        )
    output.save(_as_json(result, keep))
    _print(result, keep, output.results)
    if profile is not None and result.profile is not None and result.proposal is not None:
        if result.proposal.variant.label == "calibrated":
            result.profile.save(profile)
            output.notes.print(f"wrote {profile}", markup=False)
        else:
            output.notes.print("the default profile keeps as much: no profile was written")
    if result.proposal is None:
        raise typer.Exit(ExitCode.check_failed)


def _as_json(result: TuneResult, keep: float) -> dict[str, Any]:
    tried = [
        {"profile": label, "budget": budget, **_plain(balance)} for (label, budget), balance in result.tried.items()
    ]
    proposal = result.proposal
    return {
        "keep": keep,
        "traces": result.traces,
        "left_out": list(result.left_out),
        "tried": tried,
        "crossover_budget": _crossover(result),
        "proposal": None
        if proposal is None
        else {
            "profile": proposal.variant.label,
            "budget": proposal.budget,
            "budget_tokens": proposal.budget_tokens,
            "rests_on_few": proposal.rests_on_few,
            "chosen_on": _plain(proposal.chosen_on),
            "shown_on": _plain(proposal.shown_on),
        },
    }


def _crossover(result: TuneResult) -> float | None:
    """The first budget, a part of the trace, from which eviction saves more than it costs; None: none does."""
    return next((budget for (_, budget), tried in result.tried.items() if tried.pays), None)


def _plain(balance: Balance) -> dict[str, Any]:
    return {
        "facts": balance.facts,
        "survived": balance.survived,
        "peak_part": balance.peak_part,
        "saved": balance.saved,
        "spent": balance.spent,
        "pays": balance.pays,
    }


def _print(result: TuneResult, keep: float, console: Console) -> None:
    from rich.table import Table

    table = Table(title=f"{result.traces} traces, the first half", title_justify="left", box=None, pad_edge=False)
    for title in ("profile", "budget", "facts kept", "tokens held", "saved / spent operations", ""):
        table.add_column(title)
    for (label, budget), tried in result.tried.items():
        ratio = "nothing lost" if not tried.spent else f"{tried.saved / tried.spent:.2f}"
        table.add_row(
            label,
            f"{budget:.0%}",
            f"{tried.survived}/{tried.facts}",
            f"{tried.peak_part:.0%}",
            ratio,
            "" if tried.pays else "costs more than it saves",
        )
    console.print(table)
    crossover = _crossover(result)
    if crossover is not None:
        console.print(f"Eviction saves more than it costs from a budget of {crossover:.0%} of the trace on.")
    else:
        console.print("At no budget does eviction save more computation than computing lost messages again costs.")
    proposal = result.proposal
    if proposal is None:
        console.print(f"No budget keeps {keep:.0%}: leave these agents without one, or pin what they need.")
        return
    shown = proposal.shown_on
    console.print(
        f"Proposed: {proposal.budget:.0%} of the trace ({proposal.budget_tokens} tokens for the longest), profile "
        f"'{proposal.variant.label}'. On the other half it keeps {shown.survived} of {shown.facts} facts "
        f"({shown.kept}), and holds {shown.peak_part:.0%} of the tokens.",
        soft_wrap=True,
    )
    if proposal.rests_on_few:
        console.print(
            f"That rests on {proposal.chosen_on.facts} and {shown.facts} facts: give more traces to rely on it.",
            style="yellow",
        )
