"""Engines of a benchmark end with the command that started them."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress

PROGRAM = """
import multiprocessing, sys, time
from memdecay_adapters.bench.engine_under_test import end_with_parent

def child():
    end_with_parent()
    print("started", multiprocessing.current_process().pid, flush=True)
    time.sleep(600)

if __name__ == "__main__":
    one = multiprocessing.get_context("fork").Process(target=child)
    one.start()
    one.join()
"""


def ended(process: int) -> bool:
    """Whether no such process runs (a zombie does not)."""
    with suppress(FileNotFoundError), open(f"/proc/{process}/stat", encoding="utf-8") as file:
        return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    return True


def test_a_killed_command_leaves_no_engine_behind():
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        child = int(command.stdout.readline().split()[1])
        assert not ended(child)
        command.kill()
        command.wait()
        until = time.monotonic() + 60
        while not ended(child):
            assert time.monotonic() < until
            time.sleep(0.05)
