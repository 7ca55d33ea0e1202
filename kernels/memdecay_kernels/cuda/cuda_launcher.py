"""The kernels on a device: which compiled code it takes, loaded once, launched on torch's current stream.

Not run on a GPU: tested with a stand-in for the driver.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable, Sequence

import torch

from memdecay_kernels.cuda.archive import KernelArchive
from memdecay_kernels.cuda.build import compile_kernels
from memdecay_kernels.cuda.driver import Capability, Driver
from memdecay_kernels.cuda.errors import CudaArgumentError, CudaBuildError, CudaUnavailableError
from memdecay_kernels.cuda.launcher import Grid
from memdecay_kernels.cuda.sources import source_digest, source_files

OLDEST = Capability(8, 0)
"""Tensor-core instructions for bfloat16 begin here."""
_GRID_Y_Z_MAX = 65535


def choose_target(capability: Capability, targets: Iterable[str]) -> str | None:
    """The compiled code for a device: the newest cubin of its generation that is no newer than the device, else PTX.

    Args:
        capability: the device's.
        targets: "sm_90", "compute_80" and the like.

    Returns:
        One of ``targets``; None if none runs there.
    """
    best: tuple[bool, int] | None = None
    chosen = None
    for target in targets:
        kind, _, digits = target.partition("_")
        found = Capability(int(digits[:-1]), int(digits[-1]))
        cubin = kind == "sm"
        runs = found.major == capability.major and found <= capability if cubin else found <= capability
        rank = (cubin, found.major * 10 + found.minor)
        if runs and (best is None or rank > best):
            best, chosen = rank, target
    return chosen


class CudaLauncher:
    """Launches kernels on one device.

    Args:
        device: a CUDA device with an index.
        driver: by default the machine's.

    Raises:
        CudaArgumentError: a device without an index, or of another type.
        CudaUnavailableError: no driver, or a device older than compute capability 8.0.
        CudaBuildError: no compiled code fits, and NVRTC cannot make it.
        CudaDriverError: the code cannot be loaded.
    """

    def __init__(self, device: torch.device, driver: Driver | None = None) -> None:
        if device.type != "cuda" or device.index is None:
            raise CudaArgumentError(
                f"device '{device}'", "it names no single CUDA device", "Pass 'cuda:0' or the like."
            )
        self.device = device
        self._driver = driver if driver is not None else Driver()
        self.capability = self._driver.capability(device.index)
        if self.capability < OLDEST:
            raise CudaUnavailableError(
                f"device {device}",
                f"its compute capability is {'.'.join(map(str, self.capability))}, and the kernels need "
                f"{'.'.join(map(str, OLDEST))}",
                "Use an Ampere device or a newer one.",
            )
        self.target, code, kernels = _code_for(self.capability)
        self._context = self._driver.primary_context(device.index)
        with self._driver.current(self._context):
            module = self._driver.load(code)
            self._functions = {kernel: self._driver.function(module, kernel) for kernel in kernels}

    def launch(
        self,
        kernel: str,
        grid: Grid,
        block_threads: int,
        parameters: ctypes.Structure,
        tensors: Sequence[torch.Tensor],
    ) -> None:
        """See `Launcher`: on the stream that is current in torch, without waiting, also while a graph is captured."""
        if not all(grid):
            return
        if kernel not in self._functions:
            raise CudaArgumentError(f"kernel '{kernel}'", "the compiled code has no such kernel", "Rebuild it.")
        if max(grid.y, grid.z) > _GRID_Y_Z_MAX:
            raise CudaArgumentError(
                f"kernel '{kernel}'", f"a grid of {tuple(grid)} exceeds {_GRID_Y_Z_MAX} blocks", "Pass fewer rows."
            )
        for tensor in tensors:
            if tensor.device != self.device and not (tensor.device.type == "cpu" and tensor.is_pinned()):
                raise CudaArgumentError(
                    f"kernel '{kernel}'", f"a tensor is on {tensor.device}, the kernel on {self.device}", "Move it."
                )
        stream = torch.cuda.current_stream(self.device).cuda_stream
        with self._driver.current(self._context):
            self._driver.launch(self._functions[kernel], grid, block_threads, parameters, stream)


@functools.cache
def launcher_for(device: torch.device) -> CudaLauncher:
    """The launcher of a device, made at its first use; see `CudaLauncher` for what it raises."""
    return CudaLauncher(device)


def _code_for(capability: Capability) -> tuple[str, bytes, Sequence[str]]:
    """Target, code and kernel names: from the archive if it belongs to the sources and fits, else by NVRTC."""
    try:
        archive = KernelArchive.read()
        stale = archive.source_digest != source_digest(source_files())
        reason = "they were compiled from other sources" if stale else f"none fits compute capability {capability}"
        target = None if stale else choose_target(capability, archive.code)
    except CudaBuildError as error:
        reason, target = error.rule, None
    if target is None:
        target = f"sm_{capability.major}{capability.minor}"
        try:
            archive = compile_kernels((target,))
        except CudaBuildError as error:
            raise CudaBuildError(
                error.where, f"the compiled kernels cannot be used ({reason}), and {error.rule}", error.remedy
            ) from error
    kernels = sorted({kernel for found in archive.resources.values() for kernel in found})
    return target, archive.code[target], kernels
