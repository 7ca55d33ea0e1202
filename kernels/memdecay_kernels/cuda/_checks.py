"""Checks of tensors before their addresses go to a kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from memdecay_kernels.cuda.errors import CudaArgumentError

INT32_MAX = 2**31 - 1


def refuse(where: str, rule: str, remedy: str) -> CudaArgumentError:
    """The error for an argument that does not fit."""
    return CudaArgumentError(where, rule, remedy)


def check_tensor(
    tensor: torch.Tensor, where: str, dtype: torch.dtype | Sequence[torch.dtype], shape: Sequence[int | None]
) -> None:
    """Check dtype, shape (None: any size) and that the last axis is contiguous.

    Raises:
        CudaArgumentError: one of them does not hold.
    """
    dtypes = (dtype,) if isinstance(dtype, torch.dtype) else tuple(dtype)
    if tensor.dtype not in dtypes:
        names = " or ".join(str(one).removeprefix("torch.") for one in dtypes)
        raise refuse(where, f"it is {tensor.dtype} and has to be {names}", "Convert it.")
    fits = tensor.dim() == len(shape) and all(
        wanted is None or wanted == size for wanted, size in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        wanted_shape = "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"
        raise refuse(where, f"its shape is {list(tensor.shape)} and has to be {wanted_shape}", "Check the arguments.")
    if tensor.dim() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise refuse(where, f"its last axis has stride {tensor.stride(-1)}", "Make the last axis contiguous.")


def aligned(tensors: Sequence[torch.Tensor], strides: Sequence[int], unit_bytes: int) -> bool:
    """Whether every address and every stride (in elements) is a multiple of ``unit_bytes``."""
    return all(tensor.data_ptr() % unit_bytes == 0 for tensor in tensors) and all(
        stride * tensors[0].element_size() % unit_bytes == 0 for stride in strides
    )
