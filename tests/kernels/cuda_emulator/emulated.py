"""A launcher that runs the kernels' own sources in the emulator, with sanitizers for addresses and undefined behaviour.

The sanitizers are part of the program, which is a process of its own: Python needs none of them.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from filelock import FileLock

import memdecay_kernels.cuda
from memdecay_kernels.cuda.launcher import Grid
from tests.kernels.pointers import pointers_of, storages_of

HERE = Path(__file__).parent
KERNELS = Path(memdecay_kernels.cuda.__file__).parents[1]
INCLUDED = (HERE, KERNELS / "cuda" / "src", KERNELS / "native")
FLAGS = (
    "-std=c++17", "-O1", "-g1", "-DMEMDECAY_EMULATOR", "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-sanitize-recover=all", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-clobbered",
)  # fmt: skip
SOURCES = ("fibers.cpp", "harness.cpp")
SUFFIXES = (".h", ".cuh", ".cu", ".cpp")


class EmulatedFault(Exception):
    """A kernel broke a rule; the message is what the emulator or a sanitizer reported."""


def build(main: Path | str, folder: Path) -> Path:
    """Compile a program of the harness and one source with kernels; kept in ``folder`` until a source changes.

    Args:
        main: a file, or the text of one.
        folder: for the programs, shared by test processes.
    """
    text = main.read_text() if isinstance(main, Path) else main
    sources = sorted(path for root in INCLUDED for path in root.iterdir() if path.suffix in SUFFIXES)
    digest = hashlib.sha256(repr((FLAGS, text)).encode())
    for path in sources:
        digest.update(path.read_bytes())
    program = folder / digest.hexdigest()[:16]
    with FileLock(folder / "build.lock"):
        if not program.exists():
            generated = folder / "main.cpp"
            generated.write_text(text)
            inputs = [*(HERE / name for name in SOURCES), generated]
            objects = [folder / f"{path.name}.o" for path in inputs]
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(_compile, inputs, objects))
            partial = folder / "partial"
            _run([*FLAGS, *map(str, objects), "-o", str(partial)])
            partial.rename(program)
    return program


def _compile(source: Path, target: Path) -> None:
    _run([*FLAGS, *(f"-I{folder}" for folder in INCLUDED), "-c", str(source), "-o", str(target)])


def _run(arguments: Sequence[str]) -> None:
    done = subprocess.run(["g++", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the emulator does not compile:\n{done.stderr}")


class EmulatedLauncher:
    """Runs each launch to its end in one process of the emulator.

    Args:
        program: from `build`.
        seed: order in which threads and blocks take their turns.
        prefix: of the kernels' names in the program.
    """

    def __init__(self, program: Path, seed: int = 0, prefix: str = "") -> None:
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._prefix = prefix
        self.seed = seed
        self.launched: list[str] = []

    def launch(
        self,
        kernel: str,
        grid: Grid,
        block_threads: int,
        parameters: ctypes.Structure,
        tensors: Sequence[torch.Tensor],
    ) -> None:
        """See `Launcher`; raises `EmulatedFault`."""
        storages = storages_of(tensors)
        raw = bytes(parameters)
        pointers = [struct.pack("<IIQ", *pointer) for pointer in pointers_of(parameters, storages)]
        name = f"{self._prefix}{kernel}".encode()
        numbers = (*grid, block_threads, self.seed, len(raw), len(storages), len(pointers))
        request = struct.pack("<64s8I", name, *numbers)
        parts = [request, raw]
        for storage in storages:
            content = ctypes.string_at(storage.data_ptr(), storage.nbytes())
            parts += [struct.pack("<Q", storage.nbytes()), content]
        process = self._running()
        self.launched.append(kernel)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(b"".join([*parts, *pointers]))
            process.stdin.flush()
            answer = process.stdout.read(4)
        except BrokenPipeError:
            answer = b""
        if answer != b"done":
            raise EmulatedFault(self._epitaph(process))
        for storage in storages:
            size = storage.nbytes()
            ctypes.memmove(storage.data_ptr(), process.stdout.read(size), size)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [self._program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        return self._process

    def _epitaph(self, process: subprocess.Popen[bytes]) -> str:
        self._process = None
        _, message = process.communicate()
        return message.decode(errors="replace")
