"""What the operations need of a device: to launch a kernel by name on the stream that is current.

`CudaLauncher` of this package is the real one; the tests have one that runs the same kernels on the CPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch


class Grid(NamedTuple):
    """Blocks of a launch along each axis; a launch with an empty axis does nothing."""

    x: int
    y: int = 1
    z: int = 1


class Launcher(Protocol):
    """Launches kernels in order; does not wait for them."""

    def launch(
        self,
        kernel: str,
        grid: Grid,
        block_threads: int,
        parameters: ctypes.Structure,
        tensors: Sequence[torch.Tensor],
    ) -> None:
        """Launch one kernel.

        Args:
            kernel: its name in the sources.
            grid: blocks.
            block_threads: threads of a block.
            parameters: the kernel's one parameter, a struct passed by value.
            tensors: all memory that the struct's pointers lead to.

        Raises:
            CudaError: unknown kernel, tensors that are not on the launcher's device, or a failed launch.
        """
        ...
