"""An error as a panel on stderr: where, which rule, what to do, and its stable code."""

from __future__ import annotations

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from memdecay_agents.errors import MemDecayError

LOG_WIDTH = 160
"""Columns where stderr is no terminal."""


def show_problem(error: Exception) -> None:
    """Print the panel."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        console = Console(stderr=True, highlight=False, width=LOG_WIDTH)
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    for name, text in _rows(error):
        rows.add_row(name, Text(text))
    console.print(Panel(rows, title="error", title_align="left", border_style="red", expand=False))


def _rows(error: Exception) -> list[tuple[str, str]]:
    if isinstance(error, MemDecayError):
        return [("where", error.where), ("rule", error.rule), ("remedy", error.remedy), ("code", error.code)]
    if isinstance(error, ImportError):
        remedy = "Install what the command needs: the extra 'cpu' or 'gpu' of memdecay-agents; see `memdecay doctor`."
        return [("where", error.name or "an import"), ("rule", str(error)), ("remedy", remedy), ("code", "import")]
    remedy = "This is a bug: report it with what `memdecay --debug ...` prints."
    return [("where", type(error).__name__), ("rule", str(error) or "no message"), ("remedy", remedy), ("code", "bug")]
