"""The warehouse: a SQLite database and log files made on the spot, and the tools that really read them."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Literal

from langchain_core.tools import BaseTool, tool

from memdecay_adapters.demo.scenario import NOTICES

LOGS = ("pump", "crane", "gate")
HALLS = ("north", "south", "east")
_ITEMS = (
    "pallets",
    "drums",
    "crates",
    "cable",
    "valves",
    "filters",
    "gloves",
    "tape",
    "bolts",
    "lamps",
    "hoses",
    "paint",
    "rope",
    "seals",
    "pumps",
    "motors",
)
_EVENTS = ("started", "stopped for service", "pressure normal", "load shifted", "door opened", "door closed",
           "oil topped up", "restarted by hand", "noise reported", "inspected, no finding")  # fmt: skip


def build_site(folder: Path, seed: int = 7) -> None:
    """Make the database and the log files in ``folder``; what is there already is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    database = folder / "site.db"
    database.unlink(missing_ok=True)
    with sqlite3.connect(database) as db:
        db.execute("CREATE TABLE stock (hall TEXT, item TEXT, amount INTEGER, reserved INTEGER)")
        db.execute("CREATE TABLE notices (id INTEGER PRIMARY KEY, text TEXT, is_read INTEGER DEFAULT 0)")
        for hall in HALLS:
            rows = [(hall, item, draw.randint(5, 900), draw.randint(0, 60)) for item in _ITEMS]
            db.executemany("INSERT INTO stock VALUES (?, ?, ?, ?)", rows)
        db.executemany("INSERT INTO notices (text) VALUES (?)", [(text,) for text in NOTICES])
    db.close()
    for log in LOGS:
        lines = [
            f"{6 + n // 4:02d}:{n % 4 * 15:02d} {log} {draw.randint(1, 4)}: {draw.choice(_EVENTS)}" for n in range(36)
        ]
        (folder / f"{log}.log").write_text("\n".join(lines) + "\n")


def site_tools(folder: Path) -> list[BaseTool]:
    """The tools of the agent, reading the site in ``folder``."""

    @tool
    def read_log(log: Literal["pump", "crane", "gate"]) -> str:
        """Read a machine's log file."""
        return _unread_notices(folder) + (folder / f"{log}.log").read_text()

    @tool
    def stock_report(hall: Literal["north", "south", "east"]) -> str:
        """List the stock of a hall."""
        with sqlite3.connect(folder / "site.db") as db:
            rows = db.execute(
                "SELECT item, amount, reserved, amount - reserved FROM stock WHERE hall = ? ORDER BY item", (hall,)
            ).fetchall()
        db.close()
        lines = [
            f"{item}: {amount} in stock, {reserved} reserved, {left} left" for item, amount, reserved, left in rows
        ]
        return _unread_notices(folder) + f"Stock of the {hall} hall\n" + "\n".join(lines)

    return [read_log, stock_report]


def _unread_notices(folder: Path) -> str:
    with sqlite3.connect(folder / "site.db") as db:
        notices = [text for (text,) in db.execute("SELECT text FROM notices WHERE is_read = 0 ORDER BY id")]
        db.execute("UPDATE notices SET is_read = 1")
    db.close()
    return f"Notices: {' '.join(notices)}\n" if notices else ""
