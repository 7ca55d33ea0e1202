"""``memdecay evaluate``: what an agent still knows under a budget, policy by policy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from memdecay_adapters.commands.config_options import Profile
from memdecay_agents.cli.output import JsonFile, Output
from memdecay_agents.errors import ConfigError
from memdecay_agents.recall import LEAST_SHARE, RECENT_SHARE

if TYPE_CHECKING:
    from rich.console import Console

    from memdecay_agents.evaluation.asking import Asking
    from memdecay_agents.evaluation.report import EvaluationResult, Table


def evaluate(
    model: Annotated[str | None, typer.Option(help="Hugging Face id or folder; default: SmolLM2-135M.")] = None,
    generator: Annotated[
        str,
        typer.Option(
            help="planted, paraphrased, both (of these), retold, varied, reworded, longwinded, several with commas, or "
            "none (default with --traces)."
        ),
    ] = "",
    traces: Annotated[
        list[Path] | None, typer.Option(help="A trace file (repeat for more).", exists=True, dir_okay=False)
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds of synthetic traces: 1000-1007 or 1000,1002.")] = "1000-1007",
    lengths: Annotated[str, typer.Option(help="Tokens of synthetic traces.")] = "450,1700",
    budgets: Annotated[str, typer.Option(help="Parts of a trace's tokens.")] = "0.25,0.5,0.75",
    policies: Annotated[str | None, typer.Option(help="Names, separated by commas; default: all.")] = None,
    profile: Profile = None,
    verify: Annotated[
        float, typer.Option(help="Part of the traces that the real engine verifies; 0: replay only.")
    ] = 0.25,
    most_traces: Annotated[int | None, typer.Option(min=1, help="Traces read of each file.")] = None,
    tier: Annotated[
        str, typer.Option(help="off, or host: what recall from host memory brings back, in the real engine only.")
    ] = "off",
    asking: Annotated[
        str, typer.Option(help="Of --tier host: verbatim, paraphrased, several, chat; default: all.")
    ] = "",
    recall_pages: Annotated[int, typer.Option(min=1, max=64, help="Of --tier host: most pages a turn.")] = 4,
    least_share: Annotated[
        float, typer.Option(min=0, max=1, help="Of --tier host: evidence of the best page that what comes back has.")
    ] = LEAST_SHARE,
    recent_share: Annotated[
        float, typer.Option(min=0, max=1, help="Of --tier host: part of what stays that is the newest pages'.")
    ] = RECENT_SHARE,
    recall_every: Annotated[
        int | None, typer.Option(min=1, help="Of --tier host: tokens of an answer after which it is asked again.")
    ] = None,
    reserve_pages: Annotated[int, typer.Option(min=0, max=64, help="Of --tier host: kept free for them.")] = 0,
    repair: Annotated[
        int, typer.Option(min=0, help="Of --tier host: newest tokens computed again between turns; 0: none.")
    ] = 512,
    longest: Annotated[int, typer.Option(min=1, help="Longer traces of files are left out (tokens).")] = 4096,
    shortest: Annotated[int, typer.Option(min=1, help="Shorter traces of files are left out (tokens).")] = 1,
    supersedes: Annotated[bool, typer.Option(help="Whether agents say what is superseded.")] = True,
    mentions: Annotated[
        bool, typer.Option(help="Whether made-up traces name facts again; if not, the same sentences name nothing.")
    ] = True,
    json_file: JsonFile = None,
    out: Annotated[Path | None, typer.Option(help="Folder for a PNG and an HTML page.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables to this file, in Markdown.")] = None,
) -> None:
    """Record, replay, verify and report; run it again after an interruption, and it goes on where it was."""
    from memdecay_adapters.evaluation.run import EvaluateOptions, Evaluation

    output = Output("evaluate", json_file)
    options = EvaluateOptions(
        model=model,
        generators=_generators(generator or ("none" if traces else "planted")),
        trace_files=tuple(traces or ()),
        most_traces=most_traces,
        seeds=numbers(seeds, "--seeds"),
        lengths=numbers(lengths, "--lengths"),
        budgets=_fractions(budgets),
        policies=tuple(policies.split(",")) if policies else None,
        profile=profile,
        verify_part=verify,
        longest_tokens=longest,
        shortest_tokens=shortest,
        supersedes=supersedes,
        mentions=mentions,
        tier=_tier(tier),
        askings=_askings(asking),
        recall_pages=recall_pages,
        reserve_pages=reserve_pages,
        least_share=least_share,
        recent_share=recent_share,
        recall_every=recall_every,
        repair_tokens=(repair or None) if tier == "host" else None,
    )
    with output.progress() as show:
        result = Evaluation(options, show).run()
    output.save(result.as_json())
    if out is not None:
        from memdecay_agents.evaluation.figures import write_figures

        for path in write_figures(result, out):
            output.notes.print(f"wrote {path}", markup=False)
    if markdown is not None:
        markdown.write_text(as_markdown(result), encoding="utf-8")
    _print(result, output.results)


def numbers(text: str, option: str) -> tuple[int, ...]:
    """``3``, ``1-4`` and ``1,5,7-9`` as numbers, in order.

    Raises:
        ConfigError: anything else.
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ConfigError(where=option, rule=f"{part!r} is no number or range", remedy="Give 1000-1007 or 1,2,3.")
        found += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(found))


def _fractions(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(where="--budgets", rule=str(error), remedy="Give numbers like 0.25,0.5.") from error


def _tier(name: str) -> Literal["off", "host"]:
    if name == "off":
        return "off"
    if name == "host":
        return "host"
    raise ConfigError(where="--tier", rule=f"unknown {name!r}", remedy="Use off or host.")


def _askings(names: str) -> tuple[Asking, ...]:
    from memdecay_agents.evaluation.asking import ASKINGS

    wanted = names.split(",") if names else list(ASKINGS)
    if unknown := [name for name in wanted if name not in ASKINGS]:
        raise ConfigError(where="--asking", rule=f"unknown {unknown}", remedy=f"Use {', '.join(ASKINGS)}.")
    return tuple(asking for asking in ASKINGS if asking in wanted)


def _generators(name: str) -> tuple[str, ...]:
    from memdecay_agents.evaluation.synthetic import GENERATORS

    known = {"both": ("planted", "paraphrased"), "none": (), **{one: (one,) for one in GENERATORS}}
    for part in name.split(","):
        if part not in known:
            raise ConfigError(where="--generator", rule=f"unknown {part!r}", remedy=f"Use some of {', '.join(known)}.")
    return tuple(dict.fromkeys(one for part in name.split(",") for one in known[part]))


def as_markdown(result: EvaluationResult) -> str:
    """All tables, for a README."""
    from memdecay_agents.evaluation.report import markdown

    return (
        "\n\n".join([f"**{title}**\n\n{markdown(table)}" for title, table in _tables(result)] + _notes(result)) + "\n"
    )


def _tables(result: EvaluationResult) -> list[tuple[str, Table]]:
    from memdecay_agents.evaluation.recall_report import recall_table
    from memdecay_agents.evaluation.report import comparison_table, published_table, survival_table

    found: list[tuple[str, Table]] = []
    if any(outcome.stage == "recall" for outcome in result.outcomes):
        found.append(("recall: right answers against the full cache", recall_table(result.outcomes)))
    for stage in ("replay", "verify"):
        if any(outcome.stage == stage for outcome in result.outcomes):
            found.append(
                (f"{stage}: system facts; other facts, survived of all", survival_table(result.outcomes, stage))
            )
            found.append((f"{stage}: survival of unpinned facts", comparison_table(result.outcomes, stage)))
    if any(outcome.stage == "verify" and outcome.correct is not None for outcome in result.outcomes):
        found.append(
            ("verify: right answers of eight, unpinned facts", comparison_table(result.outcomes, "verify", asked=True))
        )
        found.append(("verify: beside what was published", published_table(result.outcomes)))
    return found


def _notes(result: EvaluationResult) -> list[str]:
    from memdecay_agents.evaluation.cells import compare
    from memdecay_agents.evaluation.report import PUBLISHED, mean_ratio

    notes = [str(result.about["factorisation"]) + "."]
    for stage in ("replay", "verify"):
        if compared := compare(result.outcomes, stage):
            notes.append(f"{stage}: {mean_ratio(compared)} times the best pinned baseline, mean over places.")
    if result.replay_agreement is not None:
        notes.append(f"Replay and verification agree on {result.replay_agreement:.1%} of the facts.")
    if (ceiling := result.about.get("ceiling")) is not None:
        lost = result.about["right_where_lost"]
        notes.append(
            f"Right answers: ceiling {ceiling:.1%} (full cache), floor {result.about['chance']:.1%} (chance)"
            + ("." if lost is None else f"; {lost:.1%} where the fact was lost.")
        )
    return [*notes, "* degenerate: pinned and protected pages fill more than half of the budget; no claim.", PUBLISHED]


def _print(result: EvaluationResult, console: Console) -> None:
    from rich.markup import escape
    from rich.table import Table as RichTable

    for title, (titles, rows) in _tables(result):
        table = RichTable(title=title, title_justify="left", box=None, pad_edge=False)
        for name in titles:
            table.add_column(escape(name))
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table)
        console.print()
    for note in _notes(result):
        console.print(escape(note), soft_wrap=True)
    for line in result.skipped[:10]:
        console.print(f"left out: {escape(line)}", soft_wrap=True)
    if len(result.skipped) > 10:
        console.print(f"left out: {len(result.skipped) - 10} more")
