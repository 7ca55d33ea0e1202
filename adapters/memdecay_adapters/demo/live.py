"""What the demo prints while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from memdecay_adapters.demo.probes import ProbeOutcome
from memdecay_adapters.demo.watch import ModelCall

_YES, _NO = "[green]yes[/]", "[red]no[/]"


class LiveReport:
    """Prints each call of the model as it ends, then the facts.

    Args:
        console: where to print; a quiet one prints nothing.
    """

    def __init__(self, console: Console) -> None:
        self.console = console

    def start(self, model: str, policy: str, page_size_tokens: int, dtype: str) -> None:
        """Name what runs."""
        self.console.rule(f"[bold]{model}[/]  policy {policy}, pages of {page_size_tokens} tokens, {dtype}")

    def user_turn(self, number: int, text: str) -> None:
        """A user turn begins."""
        self.console.print(f"\n[bold]user {number}[/] {text}", soft_wrap=False)

    def calls(self, calls: Sequence[ModelCall]) -> None:
        """The calls of one user turn: tokens by region, pages held and freed, budget, speed."""
        for call in calls:
            kept = call.retention
            budget = "no budget" if kept.budget_pages is None else f"budget {kept.budget_pages}"
            freed = _counts(kept.freed_by_region)
            self.console.print(
                f"  [bold]{call.agent}[/]  {call.prompt_tokens + call.generated_tokens} tokens: "
                f"{_counts(kept.tokens_by_region)}"
            )
            self.console.print(
                f"      computed {call.prompt_tokens - call.cached_tokens} of {call.prompt_tokens} prompt tokens; "
                f"held {kept.pages_held} of {kept.pages_total} pages, {budget}; "
                f"freed {freed or 'nothing'}; {call.tokens_per_second:.0f} tokens/s"
            )
            if call.tool_calls:
                self.console.print(f"      called {escape(', '.join(call.tool_calls))}")

    def answer(self, text: str) -> None:
        """What the agent said."""
        self.console.print(f"  [dim]said[/] {escape(' '.join(text.split()))}")

    def facts(self, with_eviction: Sequence[ProbeOutcome], full_cache: Sequence[ProbeOutcome]) -> None:
        """What is still known of each planted fact."""
        table = Table(
            title="planted facts: the right one of eight, asked under the budget",
            title_justify="left",
            box=None,
            pad_edge=False,
        )
        for title in ("region", "fact", "pages kept", "known", "full cache"):
            table.add_column(title)
        for kept, full in zip(with_eviction, full_cache, strict=True):
            table.add_row(
                kept.fact.region,
                kept.fact.sentence,
                f"{kept.pages_kept}/{len(kept.pages)}",
                _YES if kept.correct else _NO,
                _YES if full.correct else _NO,
            )
        self.console.print()
        self.console.print(table)

    def totals(self, numbers: Mapping[str, object], files: Mapping[str, str]) -> None:
        """Sum up and say where the files are."""
        self.console.print("\n" + ", ".join(f"{value} {name}" for name, value in numbers.items()))
        for name, path in files.items():
            self.console.print(f"{name}: {path}", soft_wrap=True)


def _counts(by_region: Mapping[str, int]) -> str:
    return ", ".join(f"{region} {count}" for region, count in by_region.items())
