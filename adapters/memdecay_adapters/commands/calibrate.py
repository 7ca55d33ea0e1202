"""``memdecay calibrate``: attention lifetimes by region, or a model's retrieval heads, written to a profile file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memdecay_agents.cli.output import JsonFile, Output
from memdecay_agents.errors import ConfigError

if TYPE_CHECKING:
    from memdecay_agents.calibration import ProfileFile
    from memdecay_agents.regions import ClockUnit


def calibrate(
    out: Annotated[Path, typer.Option(help="Profile file to write (YAML).")] = Path("memdecay-profile.yaml"),
    traces: Annotated[
        list[Path] | None,
        typer.Option(help="A trace file (repeat); default: synthetic traces.", exists=True, dir_okay=False),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Hugging Face id or folder; default: SmolLM2-135M.")] = None,
    unit: Annotated[str, typer.Option(help="Clock of the profile: decode_steps, tokens or turns.")] = "tokens",
    lengths: Annotated[str, typer.Option(help="Synthetic: tokens. Files: upper ends of the groups.")] = "",
    seeds: Annotated[str, typer.Option(help="Seeds of synthetic traces.")] = "0-7",
    most_traces: Annotated[int | None, typer.Option(min=1, help="Traces read of each file.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the curves of the longest group (PNG).")] = None,
    heads: Annotated[
        bool, typer.Option("--heads", help="Find the model's retrieval heads instead; a profile in OUT keeps the rest.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Measure how long each region is attended to, per context length, and write it to a profile file.

    Load it with MemDecayConfig.from_profile(FILE). With --heads: find the heads by which evicted pages are recalled;
    they are written to the profile and kept in the user's cache, where an engine looks for them.
    """
    from memdecay_adapters.commands.evaluate import numbers
    from memdecay_adapters.evaluation.calibrating import CalibrateOptions, run_calibration
    from memdecay_agents.calibration.figures import draw_lifetimes
    from memdecay_agents.calibration.lifetimes import UNITS

    if unit not in UNITS:
        raise ConfigError(where="--unit", rule=f"unknown {unit!r}", remedy=f"Use one of {', '.join(UNITS)}.")
    options = CalibrateOptions(
        model=model,
        trace_files=tuple(traces or ()),
        most_traces=most_traces,
        seeds=numbers(seeds, "--seeds"),
        lengths=numbers(lengths or ("512,1024,2048,4096" if traces else "450,1700"), "--lengths"),
        unit=unit,
    )
    output = Output("calibrate", json_file)
    if heads:
        if traces:
            raise ConfigError(
                where="--traces", rule="retrieval heads are found by planted facts", remedy="Leave --traces out."
            )
        _find_heads(model, out, unit, output)
        return
    with output.progress() as show:
        result = run_calibration(options, show)
    kept = _profile_in(out, result.profile.model)
    profile = result.profile.model_copy(update={"retrieval_heads": kept.retrieval_heads if kept else None})
    profile.save(out)
    output.save(
        {"profile_file": str(out), "profile": profile.model_dump(mode="json"), "left_out": list(result.refused)}
    )
    if figure is not None:
        draw_lifetimes(result.lifetimes[-1], figure)
    _print(result, output.results)
    for line in result.refused[:10]:
        output.notes.print(f"left out: {line}", soft_wrap=True, markup=False)
    output.notes.print(f"wrote {out}", markup=False)


def _profile_in(out: Path, model: str) -> ProfileFile | None:
    """What a file that will be written holds now; only what it says of the same model is kept."""
    from memdecay_agents.calibration import ProfileFile

    try:
        profile = ProfileFile.load(out)
    except ConfigError:
        return None
    return profile if profile.model == model else None


def _find_heads(model: str | None, out: Path, unit: ClockUnit, output: Output) -> None:
    from memdecay_adapters.models import DEFAULT_MODEL_NAME, resolve_model
    from memdecay_adapters.recall.calibrating import HeadCalibration, calibrate_heads
    from memdecay_adapters.recall.heads_for import kept_path
    from memdecay_agents.calibration import ProfileFile

    name = model or DEFAULT_MODEL_NAME
    profile = _profile_in(out, name)
    options = HeadCalibration()
    output.notes.print(f"{name}: {options.cost()}", soft_wrap=True, markup=False)
    with output.progress() as show:
        found = calibrate_heads(model, options, show)
    if (kept := kept_path(resolve_model(model))) is not None:
        found.save(kept)
    if profile is None:
        profile = ProfileFile(model=name, clock_unit=unit, retrieval_heads=found)
    profile = profile.model_copy(update={"retrieval_heads": found})
    profile.save(out)
    output.save({"profile_file": str(out), "profile": profile.model_dump(mode="json")})
    shares = ", ".join(f"{share:.0%} in the first {k}" for k, share in found.recall_at.items())
    output.results.print("retrieval heads (layer.kv_head): " + ", ".join(f"{h.layer}.{h.kv_head}" for h in found.heads))
    output.results.print(f"whole facts by evidence, {found.questions} questions of other traces: {shares} pages")
    output.notes.print(f"wrote {out}", markup=False)


def _print(result, console) -> None:  # type: ignore[no-untyped-def]  # rich and the adapters are imported late
    from rich.table import Table

    from memdecay_agents.calibration.figures import PUBLISHED_HALF_LIFE_STEPS

    for context in result.profile.contexts:
        unit = result.profile.clock_unit
        table = Table(
            title=f"up to {context.context_tokens} tokens, {context.traces} traces, {context.queries} queries; "
            f"half-lives in {unit}, {context.decay_form} fits better",
            title_justify="left",
            box=None,
            pad_edge=False,
        )
        for title in ("region", "exponential", "R2", "power law", "R2", "published (decode steps)"):
            table.add_column(title)
        for region, found in context.regions.items():
            row = [region]
            for fit in (found.exponential, found.power_law):
                assert fit is not None
                row.append("no decay" if fit.half_life_ticks is None else f"{fit.half_life_ticks:.0f}")
                row.append(f"{fit.r_squared:.2f}")
            low_high = PUBLISHED_HALF_LIFE_STEPS.get(region)
            row.append("" if low_high is None else f"{low_high[0]:.0f}-{low_high[1]:.0f}")
            table.add_row(*row)
        console.print(table)
