"""The most memory of a program, whoever started it."""

import subprocess
import sys

from memdecay_adapters.demo import peak_memory
from memdecay_adapters.demo.peak_memory import peak_rss_bytes

MIB = 2**20
TOLD = "from memdecay_adapters.demo.peak_memory import peak_rss_bytes; "


def test_a_programs_peak_is_its_own_not_that_of_the_large_one_that_started_it() -> None:
    ballast = bytearray(b"x") * (600 * MIB)
    assert peak_rss_bytes() > len(ballast)
    small, large = (
        int(subprocess.run([sys.executable, "-c", TOLD + program], capture_output=True, check=True).stdout)
        for program in ("print(peak_rss_bytes())", f"b = b'x' * {400 * MIB}; del b; print(peak_rss_bytes())")
    )
    assert small < 300 * MIB < 400 * MIB < large < len(ballast)


def test_without_proc_the_kernels_count_is_taken(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(peak_memory, "STATUS", tmp_path / "none")
    assert peak_rss_bytes() > MIB
