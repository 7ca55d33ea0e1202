"""An evaluation whose process was killed goes on where it was, and says what one that was left alone says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.server.live import environment

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.repeat]  # three engines one after another

OPTIONS = [
    "--seeds", "1000-1001", "--lengths", "350", "--budgets", "0.5", "--policies", "full,recency,memdecay",
    "--verify", "1",
]  # fmt: skip


def started(folder: Path, model_path: str, cache: str, result: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "memdecay_agents", "evaluate", *OPTIONS, "--model", model_path]
    told = (folder / f"{result}.log").open("wb")
    return subprocess.Popen(
        [*command, "--json", str(folder / result)],
        stdout=told, stderr=subprocess.STDOUT, start_new_session=True,
        env={**environment(folder), "MEMDECAY_CACHE": str(folder / cache)},
    )  # fmt: skip


def finished_pieces(cache: Path) -> list[bytes]:
    """The lines of what is verified so far, without one that is being written."""
    return [line for file in cache.glob("eval/verified-*.jsonl") for line in file.read_bytes().split(b"\n")[:-1]]


def result_of(process: subprocess.Popen[bytes], folder: Path, result: str) -> dict[str, Any]:
    assert process.wait(timeout=300) == 0, (folder / f"{result}.log").read_text()
    made: dict[str, Any] = json.loads((folder / result).read_text())
    return made


def test_an_evaluation_that_was_killed_goes_on_and_gives_the_same_result(
    no_engine: None, model_path: str, tmp_path: Path
) -> None:
    cut = started(tmp_path, model_path, "cut", "cut.json")
    end = time.monotonic() + 240
    while not finished_pieces(tmp_path / "cut"):
        assert cut.poll() is None, (tmp_path / "cut.json.log").read_text()
        assert time.monotonic() < end
        time.sleep(0.05)
    os.killpg(cut.pid, signal.SIGKILL)  # the second trace is being streamed
    assert cut.wait() == -signal.SIGKILL
    before = finished_pieces(tmp_path / "cut")
    assert len(before) == 1
    assert not (tmp_path / "cut.json").exists()

    resumed = result_of(started(tmp_path, model_path, "cut", "resumed.json"), tmp_path, "resumed.json")
    assert finished_pieces(tmp_path / "cut")[:1] == before, "what was finished is kept, not done again"
    assert len(finished_pieces(tmp_path / "cut")) == 2
    whole = result_of(started(tmp_path, model_path, "whole", "whole.json"), tmp_path, "whole.json")
    assert resumed["cells"] == whole["cells"]
    assert resumed["comparisons"] == whole["comparisons"]
    assert resumed["replay_agreement"] == whole["replay_agreement"]
    assert resumed["probes"] == whole["probes"] > 0
