"""Every implementation of the kernels: on the host by name, and the CUDA sources emulated and on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from memdecay_kernels.native import library
from tests.kernels.cuda_emulator.emulated import HERE, EmulatedLauncher, build
from tests.kernels.on_device import RoundTripLauncher

BuildProgram = Callable[[Path | str], Path]


def runs_here(name: str) -> bool:
    if name == "reference":
        return True
    try:
        return library.load(name) is not None
    except ValueError:
        return False


@pytest.fixture(params=["reference", *library.NAMES])
def implementation(request, monkeypatch):
    """One implementation on the host by name; tests of an instruction set that the processor lacks are skipped."""
    if not runs_here(request.param):
        pytest.skip(f"this processor or this build has no {request.param}")
    monkeypatch.setenv("MEMDECAY_KERNELS", request.param)
    return request.param


@pytest.fixture(scope="session")
def build_program(request: pytest.FixtureRequest) -> BuildProgram:
    """Compile a program of the emulator, once for all test processes; kept until a source changes."""
    folder = request.config.cache.mkdir("cuda_emulator")
    return lambda main: build(main, folder)


@pytest.fixture(scope="module")
def emulator(build_program: BuildProgram) -> Iterator[EmulatedLauncher]:
    """The product's kernels."""
    launcher = EmulatedLauncher(build_program(HERE / "kernels.cpp"))
    yield launcher
    launcher.close()


@pytest.fixture(scope="module", params=["emulated", "device"])
def launcher(request: pytest.FixtureRequest) -> EmulatedLauncher | RoundTripLauncher:
    """The product's kernels: emulated, and on a CUDA device where there is one."""
    if request.param == "emulated":
        return request.getfixturevalue("emulator")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: the kernels are only emulated here")
    return RoundTripLauncher(torch.device("cuda", 0))


@pytest.fixture(scope="module")
def probes(build_program: BuildProgram) -> Iterator[EmulatedLauncher]:
    """Kernels for tests of the emulator itself."""
    launcher = EmulatedLauncher(build_program(HERE / "probes.cpp"))
    yield launcher
    launcher.close()
