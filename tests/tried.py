"""The README's table of what was tried; ``python -m tests.tried`` runs the tests and writes it.

A row is a marker ``@pytest.mark.tried(what, *packages)`` on a test; tests with the same text share a row.
"""

from __future__ import annotations

import importlib
import platform
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
FILES = (
    *sorted(path.relative_to(ROOT) for path in (ROOT / "tests" / "graphs").glob("test_*.py")),
    *(
        Path("tests", *name.split("/"))
        for name in (
            "adapters/test_langchain_standard.py",
            "adapters/test_taint_templates.py",
            "adapters/test_answer_parsers.py",
            "server/test_remote_chat.py",
            "server/test_remote_refusals.py",
            "server/test_live_server.py",
        )
    ),
)
"""Tests that may declare rows."""
OPENING = "<!-- tried: written by python -m tests.tried -->\n"
CLOSING = "<!-- /tried -->\n"
ALWAYS = ("langgraph", "langchain-core")


class Row(NamedTuple):
    """What was tried, with which packages beside langgraph and langchain-core."""

    what: str
    packages: tuple[str, ...]


def rows() -> list[Row]:
    """The rows that the tests declare, in the order of the files and of the tests in them."""
    found: dict[Row, None] = {}
    for path in FILES:
        module = importlib.import_module(".".join(path.with_suffix("").parts))
        for value in (module, *vars(module).values()):
            marks = getattr(value, "pytestmark", ())
            for mark in marks if isinstance(marks, (list, tuple)) else (marks,):
                if mark.name == "tried":
                    found[Row(mark.args[0], mark.args[1:])] = None
    return list(found)


def written(readme: str) -> str:
    """The table in a README, without its markers."""
    return readme.split(OPENING)[1].split(CLOSING)[0]


def rows_of(table: str) -> list[Row]:
    """The rows of a written table, without counts and versions."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if "|" in line]
    return [Row(what, tuple(re.findall(r"([\w-]+) \d", packages))) for what, _, packages in cells[2:]]


class Tally:
    """A pytest plugin that counts the outcomes of each row."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self.passed: dict[Row, int] = {}
        self.skipped: dict[Row, str] = {}
        self.xfailed: dict[Row, int] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items:
            if mark := item.get_closest_marker("tried"):
                self._rows[item.nodeid] = Row(mark.args[0], mark.args[1:])

    def pytest_runtest_logreport(self, report: Any) -> None:
        row = self._rows.get(report.nodeid)
        if row is not None and hasattr(report, "wasxfail"):
            self.xfailed[row] = self.xfailed.get(row, 0) + 1
        elif row is not None and report.skipped and report.when == "setup":
            self.skipped[row] = str(report.longrepr[-1]).removeprefix("Skipped: ")
        elif row is not None and report.when == "call" and report.passed:
            self.passed[row] = self.passed.get(row, 0) + 1


def table(tally: Tally) -> str:
    """The table of what passed."""
    return "".join(_lines(tally))


def _lines(tally: Tally) -> Iterator[str]:
    base = ", ".join(f"{name} {version(name)}" for name in ALWAYS)
    yield f"\nWith Python {platform.python_version()}, {base}, and what the row names:\n\n"
    yield "| what | tests | with |\n|---|---|---|\n"
    for row in rows():
        count = str(tally.passed.get(row, 0))
        if row in tally.xfailed:
            count += f", {tally.xfailed[row]} xfail"
        if row in tally.skipped and row not in tally.passed:
            count = f"not here: {tally.skipped[row]}"
        yield f"| {row.what} | {count} | {', '.join(f'{name} {version(name)}' for name in row.packages)} |\n"
    yield "\n"


def main() -> int:
    """Run the tests; write the table if all of them passed."""
    tally = Tally()
    code = pytest.main([*(str(ROOT / path) for path in FILES), "-q"], plugins=[tally])
    if code == 0:
        readme = ROOT / "README.md"
        text = readme.read_text()
        readme.write_text(text.replace(OPENING + written(text) + CLOSING, OPENING + table(tally) + CLOSING))
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
