"""The operations on NVIDIA devices, from compute capability 8.0 on.

One source (``src/*.cuh``) for the device and for the emulation on the CPU by which it is tested. Compiled code for
the known architectures comes with the package; NVRTC, which every CUDA build of torch brings along, is the fallback.
Importing this needs neither a driver nor a device. Not run on a GPU: every figure about it is computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def prepare(device: torch.device) -> None:
    """Load the kernels onto a device, before a CUDA graph is captured there.

    Args:
        device: a CUDA device with an index.

    Raises:
        CudaError: no driver, a device older than compute capability 8.0, or no code for it.
    """
    from memdecay_kernels.cuda.cuda_launcher import launcher_for

    launcher_for(device)
