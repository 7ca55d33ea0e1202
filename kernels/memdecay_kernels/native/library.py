"""Load the native library once a process and choose its instruction set."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memdecay_kernels.native import build
from memdecay_kernels.native.warning import warn_without_native

NAMES = ("portable", "avx2", "avx512", "avx512bf16", "amx")
OPERATIONS = (
    "attention_mass",
    "read_keys",
    "key_norms",
    "observe",
    "score",
    "salience",
    "facts",
    "select",
    "compact",
    "copy",
    "ranks",
)
_lock = threading.Lock()


class Library:
    """The loaded library with one instruction set; each operation is a function of an argument record's address.

    Args:
        functions: the shared object.
        number: of the instruction set.
    """

    def __init__(self, functions: ctypes.CDLL, number: int) -> None:
        self.instruction_set: str = functions.memdecay_name(number).decode()
        """What it runs with: one of `NAMES`."""
        self._calls: dict[str, Callable[..., int]] = {
            name: functools.partial(getattr(functions, f"memdecay_{name}"), number) for name in OPERATIONS
        }

    def call(self, operation: str, arguments: bytes | int) -> None:
        """Run an operation.

        Args:
            operation: one of `OPERATIONS`.
            arguments: its record (see `memdecay_kernels.native.records`), or the record's address; what it points to
                must stay alive.

        Raises:
            RuntimeError: the library's record has another size: it was built from other sources.
        """
        if self._calls[operation](arguments):
            self.refuse()

    def function(self, operation: str) -> Callable[[bytes | int], int]:
        """An operation as a function of its record, for many calls; where it does not return 0, call `refuse`."""
        return self._calls[operation]

    def refuse(self) -> None:
        """Say what a record of another size means.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(f"{build.LIBRARY.name} was built from other sources: {REBUILD}")


REBUILD = "run `python -m memdecay_kernels.native.build`"


def load(choice: str = "auto") -> Library | None:
    """The library with an instruction set, or None where it cannot be used (warned of once).

    Args:
        choice: "auto" for the best one here, or one of `NAMES`.

    Raises:
        ValueError: an unknown name, or an instruction set that this processor or this build lacks.
    """
    if choice not in ("auto", *NAMES):
        raise ValueError(f"MEMDECAY_KERNELS={choice!r} is none of auto, reference, {', '.join(NAMES)}")
    with _lock:
        return _with(choice)


@functools.lru_cache(maxsize=8)
def _with(choice: str) -> Library | None:
    functions = _open()
    if functions is None:
        return None
    number = functions.memdecay_find(choice.encode())
    if number < 0:
        raise ValueError(f"MEMDECAY_KERNELS={choice!r}: this processor or this build has no {choice}")
    return Library(functions, number)


@functools.lru_cache(maxsize=1)
def _open() -> ctypes.CDLL | None:
    if not build.LIBRARY.exists():
        warn_without_native("it was installed without its native library")
        return None
    try:
        functions = _with_openmp(build.LIBRARY)
    except OSError as error:
        warn_without_native(f"its native library cannot be loaded ({error})")
        return None
    _declare(functions)
    if build.SOURCES.exists() and functions.memdecay_digest().decode() != build.source_digest():
        warn_without_native("its native library was built from other sources")
        return None
    return functions


def _with_openmp(path: Path) -> ctypes.CDLL:
    """Open the library; where the system has no OpenMP runtime, torch's own one serves (it is never bundled here).

    One process must have one such runtime: torch's has the same SONAME, so that whichever is first serves both.
    """
    if (torch := importlib.util.find_spec("torch")) is not None and torch.origin is not None:
        for runtime in sorted((Path(torch.origin).parent / "lib").glob("libgomp*.so*")):
            ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(path))


def _declare(functions: Any) -> None:
    functions.memdecay_digest.restype = ctypes.c_char_p
    functions.memdecay_name.argtypes = [ctypes.c_int]
    functions.memdecay_name.restype = ctypes.c_char_p
    functions.memdecay_find.argtypes = [ctypes.c_char_p]
    functions.memdecay_find.restype = ctypes.c_int
    for name in OPERATIONS:
        function = getattr(functions, f"memdecay_{name}")
        function.argtypes = [ctypes.c_int, ctypes.c_void_p]
        function.restype = ctypes.c_int
