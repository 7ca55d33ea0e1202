"""Each example runs as a user would run it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
pytestmark = [pytest.mark.engine, pytest.mark.slow]


def run(name: str) -> str:
    command = [sys.executable, str(EXAMPLES / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wrap_an_agent(no_engine):
    output = run("wrap_an_agent.py")
    held = re.findall(r"held (\d+) of (\d+) pages, budget (\d+)", output)
    assert len(held) == 2
    assert all(int(kept) <= int(budget) < int(total) for kept, total, budget in held)
    assert not re.search(r"freed by region: \{[^}]*'(system|plan)'", output)


def test_pins_in_the_graph(no_engine):
    output = run("pins_in_the_graph.py")
    assert re.search(r"called stock\(\{'hall': '(north|south)'\}\)", output)
    assert re.search(r"freed by region: \{[^}]*'tool_out': \d+", output)
    assert not re.search(r"freed by region: \{[^}]*'system'", output)


def test_own_policy():
    assert "passes" in run("own_policy.py")


def test_every_example_is_run_here_or_where_a_server_runs():
    source = Path(__file__).read_text()
    elsewhere = (Path(__file__).parent / "server" / "test_live_server.py").read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f'run("{path.name}")' in source or f'"{path.name}"' in elsewhere
