"""Compile the native library: `python -m memdecay_kernels.native.build`, and the wheel's build hook.

One shared object holds the same source compiled for each instruction set, so that a library built on one machine
runs on another. It is plain C++17 with a C interface: no Python headers, no torch, one build for every Python.
Needs nothing but GCC (``CXX``, else c++ or g++) with OpenMP: vectors are written in its vector extension.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
LIBRARY = Path(__file__).parent / "libmemdecay_kernels.so"

# No -ffast-math: it flushes subnormal numbers to zero in the whole process and reorders what must not be reordered.
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math",
         "-Wall", "-Wextra"]  # fmt: skip
_AVX2 = ["-mavx2", "-mfma", "-mf16c"]
_AVX512 = [*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512",
           "-Wno-maybe-uninitialized"]  # fmt: skip
_X86_SETS = {
    "portable": [],
    "avx2": _AVX2,
    "avx512": _AVX512,
    "avx512bf16": [*_AVX512, "-mavx512bf16"],
    "amx": [*_AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"],
}


class BuildError(RuntimeError):
    """The library could not be compiled; the message says why."""


def instruction_sets(machine: str) -> dict[str, list[str]]:
    """Instruction sets that are compiled for a machine type, each with its flags; the portable path for all others."""
    return _X86_SETS if machine in ("x86_64", "AMD64") else {"portable": []}


def find_compiler() -> list[str]:
    """The C++ compiler's command.

    Raises:
        BuildError: there is none.
    """
    if given := os.environ.get("CXX"):
        return shlex.split(given)
    for name in ("c++", "g++"):
        if found := shutil.which(name):
            return [found]
    raise BuildError("no C++ compiler was found (CXX, c++ and g++ were tried)")


def source_digest() -> str:
    """Names the sources and flags that a library was built from."""
    digest = hashlib.sha256(repr((FLAGS, _X86_SETS)).encode())
    for path in sorted(path for path in SOURCES.iterdir() if path.suffix in (".h", ".cpp")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def build(target: Path = LIBRARY, *, compiler: list[str] | None = None, machine: str | None = None) -> Path:
    """Compile and link; an existing library stays as it is until the new one is whole.

    Args:
        target: the shared object to write.
        compiler: its command, by default what `find_compiler` finds (another one compiles for another machine).
        machine: type of the machine to compile for, by default this one's.

    Returns:
        ``target``.

    Raises:
        BuildError: no compiler, or it failed; with its messages.
    """
    command = compiler or find_compiler()
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            (SOURCES / "isa.cpp", Path(folder) / f"{name}.o", [f"-DMEMDECAY_ISA={name}", *flags])
            for name, flags in instruction_sets(machine or platform.machine()).items()
        ]
        digest = [f'-DMEMDECAY_DIGEST="{source_digest()}"']
        jobs += [(SOURCES / f"{name}.cpp", Path(folder) / f"{name}.o", digest) for name in ("library", "ranks")]
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            list(pool.map(lambda job: _run([*command, *FLAGS, *job[2], "-c", str(job[0]), "-o", str(job[1])]), jobs))
        linked = Path(folder) / target.name
        objects = [str(job[1]) for job in jobs]
        _run([*command, "-shared", "-fopenmp", *objects, "-o", str(linked)])
        target.parent.mkdir(parents=True, exist_ok=True)
        if not linked.exists():
            raise BuildError(f"{command[0]} wrote no library")
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(linked, partial)
        partial.chmod(0o755)
        partial.replace(target)
    return target


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        raise BuildError(f"{' '.join(command[:1])} failed:\n{done.stderr.strip()[-4000:]}")


def main() -> int:
    """Build in place and say so."""
    try:
        print(build())
    except BuildError as error:
        print(f"memdecay_kernels: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
