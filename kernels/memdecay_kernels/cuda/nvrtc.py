"""NVRTC, NVIDIA's compiler as a library, by ctypes: needs no GPU, no nvcc, no host compiler and no headers.

Found in its pip package (``nvidia-cuda-nvrtc-cu12`` or that of CUDA 13; a CUDA build of torch brings one along), else
wherever the loader finds it.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from memdecay_kernels.cuda.errors import CudaBuildError

_SONAMES = ("libnvrtc.so.12", "libnvrtc.so.13")


class Compiled(NamedTuple):
    """What NVRTC made of the sources for one target."""

    code: bytes
    """A cubin for a real architecture ("sm_90"), PTX for a virtual one ("compute_80")."""
    log: str
    """Messages, with ptxas' account of registers and spills for a real architecture."""


class Nvrtc:
    """The compiler.

    Raises:
        CudaBuildError: the library is not there.
    """

    def __init__(self) -> None:
        self._library = _load()
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
        self.version = f"{major.value}.{minor.value}"
        """As "12.9"."""

    def compile(self, files: Mapping[str, bytes], main: str, target: str) -> Compiled:
        """Compile for one target.

        Args:
            files: contents by name; they include each other by these names.
            main: the one to compile.
            target: "sm_90" and the like for a cubin, "compute_80" and the like for PTX.

        Raises:
            CudaBuildError: the compiler refused; its messages are in the error.
        """
        real = target.startswith("sm_")
        options = [f"--gpu-architecture={target}", "--std=c++17", *(["--ptxas-options=-v"] if real else [])]
        headers = {name: content for name, content in files.items() if name != main}
        names = (ctypes.c_char_p * len(headers))(*(name.encode() for name in headers))
        contents = (ctypes.c_char_p * len(headers))(*headers.values())
        program = ctypes.c_void_p()
        created = self._library.nvrtcCreateProgram(
            ctypes.byref(program), files[main], main.encode(), len(headers), contents, names
        )
        self._check(created, "nvrtcCreateProgram")
        try:
            flags = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self._library.nvrtcCompileProgram(program, len(options), flags)
            log = self._text(program, "ProgramLog").decode(errors="replace")
            if status:
                raise CudaBuildError(
                    f"NVRTC {self.version} for {target}",
                    f"it refused the kernels: {log.strip()}",
                    "Use the compiled kernels that come with the package, or another version of NVRTC.",
                )
            return Compiled(self._text(program, "CUBIN" if real else "PTX"), log)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), what)
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, buffer), what)
        return buffer.raw if what == "CUBIN" else buffer.raw.rstrip(b"\0")

    def _check(self, status: int, call: str) -> None:
        if status:
            raise CudaBuildError("NVRTC", f"{call} returned {status}", "Reinstall the package of NVRTC.")


def _load() -> ctypes.CDLL:
    for path in (*_in_packages(), *_SONAMES):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise CudaBuildError(
        "NVRTC",
        f"none of {', '.join(_SONAMES)} was found",
        "Install it with: pip install 'nvidia-cuda-nvrtc-cu12==12.9.86'.",
    )


def _in_packages() -> Iterator[str]:
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for soname in _SONAMES:
            yield from sorted(str(path) for path in Path(root).glob(f"*/lib/{soname}"))
