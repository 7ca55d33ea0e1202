"""The emulator of the CUDA kernels, compiled once for all test processes and kept until a source changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kernels.cuda_emulator.emulated import HERE, EmulatedLauncher, build

BuildProgram = Callable[[Path | str], Path]


@pytest.fixture(scope="session")
def build_program(request: pytest.FixtureRequest) -> BuildProgram:
    """Compile a program of the emulator."""
    folder = request.config.cache.mkdir("cuda_emulator")
    return lambda main: build(main, folder)


@pytest.fixture(scope="module")
def emulator(build_program: BuildProgram) -> Iterator[EmulatedLauncher]:
    """The product's kernels."""
    launcher = EmulatedLauncher(build_program(HERE / "kernels.cpp"))
    yield launcher
    launcher.close()


@pytest.fixture(scope="module")
def probes(build_program: BuildProgram) -> Iterator[EmulatedLauncher]:
    """Kernels for tests of the emulator itself."""
    launcher = EmulatedLauncher(build_program(HERE / "probes.cpp"))
    yield launcher
    launcher.close()
