"""The few calls of the CUDA driver that launching a kernel takes, by ctypes on ``libcuda.so.1``.

The driver API and not the runtime: it is there with every driver, and shares the primary context in which torch
lives. Not run on a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from memdecay_kernels.cuda.errors import CudaDriverError, CudaUnavailableError
from memdecay_kernels.cuda.launcher import Grid

_LIBRARY = "libcuda.so.1"
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute
_REGISTERS = 4  # CUfunction_attribute


class Capability(NamedTuple):
    """Compute capability, as (9, 0) for an H100."""

    major: int
    minor: int


class Driver:
    """The driver; every call either succeeds or raises.

    Args:
        library: stands in for ``libcuda.so.1`` in tests.

    Raises:
        CudaUnavailableError: there is no driver, or it does not start.
    """

    def __init__(self, library: Any | None = None) -> None:
        try:
            self._library = library if library is not None else ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise CudaUnavailableError(
                _LIBRARY,
                f"the CUDA driver cannot be loaded: {error}",
                "Install an NVIDIA driver, or keep the tensors on the CPU.",
            ) from error
        status = self._library.cuInit(ctypes.c_uint(0))
        if status:
            raise CudaUnavailableError(
                _LIBRARY, f"cuInit failed: {self._name(status)}", "Check with nvidia-smi that a device is visible."
            )

    def capability(self, ordinal: int) -> Capability:
        """The compute capability of a device."""
        device = self._device(ordinal)
        numbers = []
        for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
            value = ctypes.c_int()
            self._call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), device)
            numbers.append(value.value)
        return Capability(*numbers)

    def primary_context(self, ordinal: int) -> ctypes.c_void_p:
        """The context that torch uses on a device; held from now on."""
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device(ordinal))
        return context

    @contextmanager
    def current(self, context: ctypes.c_void_p) -> Iterator[None]:
        """Make a context the calling thread's current one for a while."""
        self._call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def load(self, code: bytes) -> ctypes.c_void_p:
        """Load a cubin or PTX into the current context."""
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(code))
        return module

    def function(self, module: ctypes.c_void_p, kernel: str) -> ctypes.c_void_p:
        """A kernel of a module, fully loaded: nothing is left to be done at its first launch."""
        function, registers = ctypes.c_void_p(), ctypes.c_int()
        self._call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(kernel.encode()))
        self._call("cuFuncGetAttribute", ctypes.byref(registers), ctypes.c_int(_REGISTERS), function)
        return function

    def launch(
        self, function: ctypes.c_void_p, grid: Grid, block_threads: int, parameters: ctypes.Structure, stream: int
    ) -> None:
        """Launch on a stream, in the current context; the parameters are copied before this returns."""
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(parameters))
        sizes = (ctypes.c_uint(size) for size in (*grid, block_threads, 1, 1, 0))
        self._call("cuLaunchKernel", function, *sizes, ctypes.c_void_p(stream), pointers, ctypes.c_void_p())

    def _device(self, ordinal: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        return device

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise CudaDriverError(
                name,
                f"the driver returned {self._name(status)}",
                "An earlier kernel may have failed: run with CUDA_LAUNCH_BLOCKING=1. Kernels are loaded by "
                "memdecay_kernels.cuda.prepare(device), before any graph is captured.",
            )

    def _name(self, status: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(ctypes.c_int(status), ctypes.byref(text))
        return f"{text.value.decode() if text.value else 'unknown error'} ({status})"
