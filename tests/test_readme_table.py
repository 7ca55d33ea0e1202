"""The README's table has the rows that the tests declare."""

from __future__ import annotations

from tests.tried import ROOT, Row, Tally, rows, rows_of, table, written


def test_the_readme_has_these_rows() -> None:
    assert rows_of(written((ROOT / "README.md").read_text())) == rows(), "run: python -m tests.tried"


def test_a_written_table_is_read_back_and_says_what_was_skipped() -> None:
    tally, first = Tally(), rows()[0]
    tally.passed = dict.fromkeys(rows()[1:], 2)  # a row of which something passed says how many
    tally.skipped = {first: "no server"}
    text = table(tally)
    assert rows_of(text) == rows()
    assert f"| {first.what} | not here: no server |" in text
    assert rows_of(text.replace("| 2 |", "| 3 |")) == rows()  # counts and versions may be older, rows may not
    assert rows_of(text.replace(first.what, "x"))[0] == Row("x", first.packages)
