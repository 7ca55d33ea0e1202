"""The examples run as a user would run them: those that need an engine share one process, and so one engine."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
ON_ONE_ENGINE = (
    "wrap_an_agent.py",
    "pins_in_the_graph.py",
    "agent_with_middleware.py",
    "supervisor_and_workers.py",
    "retrieval_with_tags.py",
)
QUESTIONS = ("Who counts the crates?", "And who carries them?", "Where is the gate?")

CUT_OFF = """
import json, os, signal, sys
import resume_after_a_kill as chat
path, first, second = sys.argv[1:]
print(json.dumps([m.text for m in chat.talk(path, first, show=lambda piece: None)]), flush=True)
chat.talk(path, second, show=lambda piece: os.kill(os.getpid(), signal.SIGKILL))
"""
GO_ON = """
import json, runpy, sys
import resume_after_a_kill as chat
path, third, *names = sys.argv[1:]
sys.argv = ["example"]
said = chat.talk(path, third, show=lambda piece: None)
print(json.dumps([[m.type, m.text, m.response_metadata.get("memdecay", {}), m.usage_metadata if m.type == "ai" else {}]
                  for m in said]))
for name in names:
    print(f"=== {name}", flush=True)
    runpy.run_path(name, run_name="__main__")
"""


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=EXAMPLES)


def run(name: str) -> str:
    done = start(name)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def cut_off(tmp_path_factory, engine_house) -> tuple[str, list[str]]:
    """A conversation whose process was killed in the middle of its second answer: its file, and what it said."""
    engine_house.close()
    path = str(tmp_path_factory.mktemp("threads") / "chat.sqlite")
    killed = start("-c", CUT_OFF, path, *QUESTIONS[:2])
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    return path, json.loads(killed.stdout)


@pytest.fixture(scope="module")
def printed(cut_off) -> dict[str, str]:
    """What each example printed; under "talk" the conversation after it was taken up again."""
    done = start("-c", GO_ON, cut_off[0], QUESTIONS[2], *ON_ONE_ENGINE)
    assert done.returncode == 0, done.stderr
    talk, *rest = re.split(r"^=== ", done.stdout, flags=re.MULTILINE)
    return {"talk": talk} | dict(part.split("\n", 1) for part in rest)


@pytest.mark.engine
@pytest.mark.slow
class TestOnOneEngine:
    def test_a_conversation_outlives_its_process(self, cut_off, printed):
        said = json.loads(printed["talk"])
        assert [text for kind, text, *_ in said if kind == "human"] == list(QUESTIONS)
        assert [kind for kind, *_ in said] == ["human", "ai"] * 3
        assert [text for _, text, *_ in said[:2]] == cut_off[1]  # the turn before the kill, word for word
        (_, _, rebuilt, usage), (_, _, continued, _) = said[3], said[5]
        assert rebuilt["continued_tokens"] == 0  # nothing of the session was left
        assert usage["input_tokens"] > said[1][3]["input_tokens"] + said[1][3]["output_tokens"]  # all was computed
        assert continued["continued_tokens"] >= usage["input_tokens"]  # and is there again

    def test_wrap_an_agent(self, printed):
        output = printed["wrap_an_agent.py"]
        held = re.findall(r"held (\d+) of (\d+) pages, budget (\d+)", output)
        assert len(held) == 2
        assert all(int(kept) <= int(budget) < int(total) for kept, total, budget in held)
        assert not re.search(r"freed by region: \{[^}]*'(system|plan)'", output)

    def test_pins_in_the_graph(self, printed):
        output = printed["pins_in_the_graph.py"]
        assert re.search(r"called stock\(\{'hall': '(north|south)'\}\)", output)
        assert re.search(r"freed by region: \{[^}]*'tool_out': \d+", output)
        assert not re.search(r"freed by region: \{[^}]*'system'", output)

    def test_agent_with_middleware(self, printed):
        first, second = printed["agent_with_middleware.py"].split("clerk: ")[1:]
        assert first.startswith("search\n")
        assert re.search(r"tokens by region: \{[^}]*'retrieval': \d{3}", second)
        held, total, budget = map(int, re.search(r"held (\d+) of (\d+) pages, budget (\d+)", second).groups())
        assert held <= budget < total
        assert re.search(r"freed by region: \{[^}]*'retrieval': \d+", second)
        assert not re.search(r"freed by region: \{[^}]*'system'", second)

    def test_supervisor_and_workers(self, printed):
        output = printed["supervisor_and_workers.py"]
        assert sorted(re.findall(r"^(researcher|writer): ", output, flags=re.MULTILINE)) == ["researcher", "writer"]
        tallies = re.findall(r"  (\w+): budget (\d+), held at most (\d+) of (\d+)", output)
        team = {name: tuple(map(int, figures)) for name, *figures in tallies if name in output.split("pool:")[0]}
        budgets = {name: budget for name, (budget, _, _) in team.items()}
        assert budgets["researcher"] > budgets["writer"]
        assert all(peak <= budget < longest for budget, peak, longest in team.values())
        free, total, kept = map(int, re.search(r"pool: (\d+) of (\d+) pages free, (\d+) sess", output).groups())
        assert kept >= 3, "supervisor and workers each keep a session"
        assert free < total

    def test_retrieval_with_tags(self, printed):
        output = printed["retrieval_with_tags.py"]
        assert re.search(r"tokens by region: \{[^}]*'retrieval': \d{3}", output)
        assert set(re.findall(r"'(\w+)'", output.split("freed by region:")[1])) == {"retrieval"}


def test_own_policy():
    assert "passes" in run("own_policy.py")


def test_every_example_is_run_here_or_where_a_server_runs():
    source = Path(__file__).read_text()
    elsewhere = (Path(__file__).parent / "server" / "test_live_server.py").read_text()
    for path in EXAMPLES.glob("*.py"):
        here = f'run("{path.name}")' in source or f"import {path.stem} " in source or path.name in ON_ONE_ENGINE
        assert here or f'"{path.name}"' in elsewhere, path.name
