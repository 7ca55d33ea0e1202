"""A launcher for tensors on the host that runs each launch on a CUDA device, on copies of their memory.

With it the tests of the emulated kernels run on a device as they are. Not run on a GPU yet.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from memdecay_kernels.cuda.cuda_launcher import launcher_for
from memdecay_kernels.cuda.launcher import Grid
from tests.kernels.pointers import pointers_of, storages_of


class RoundTripLauncher:
    """Copies to the device, launches, waits and copies back."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._launcher = launcher_for(device)
        self.seed = 0
        self.launched: list[str] = []

    def launch(
        self,
        kernel: str,
        grid: Grid,
        block_threads: int,
        parameters: ctypes.Structure,
        tensors: Sequence[torch.Tensor],
    ) -> None:
        """See `Launcher`."""
        self.launched.append(kernel)
        storages = storages_of(tensors)
        on_host = [torch.empty(0, dtype=torch.uint8).set_(storage) for storage in storages]
        on_device = [part.to(self._device) for part in on_host]
        moved = type(parameters).from_buffer_copy(parameters)
        for pointer in pointers_of(parameters, storages):
            address = on_device[pointer.storage].data_ptr() + pointer.byte
            ctypes.c_void_p.from_buffer(moved, pointer.place).value = address
        self._launcher.launch(kernel, grid, block_threads, moved, on_device)
        torch.cuda.synchronize(self._device)
        for host, device in zip(on_host, on_device, strict=True):
            host.copy_(device)
