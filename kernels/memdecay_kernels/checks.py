"""What the public operations refuse before an address goes to a library that trusts it."""

from __future__ import annotations

import torch


def check_tensor(
    name: str, tensor: torch.Tensor, dtypes: tuple[torch.dtype, ...], shape: tuple[int | None, ...]
) -> None:
    """Check a tensor's dtype and shape.

    Args:
        name: of the argument, for the message.
        tensor: the argument.
        dtypes: those that fit.
        shape: sizes; None: any.

    Raises:
        ValueError: which argument does not fit, what it is and what it should be.
    """
    if tensor.dtype not in dtypes:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ValueError(f"{name} is {str(tensor.dtype).removeprefix('torch.')}, and has to be {wanted}")
    fits = tensor.dim() == len(shape) and all(
        size is None or size == there for size, there in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} is {list(tensor.shape)}, and has to be [{wanted}]")


def check_increasing(name: str, index: torch.Tensor, end: int) -> None:
    """Check indices on the host: strictly increasing, from 0 on, below ``end``; on a device the caller answers for it.

    Raises:
        ValueError: they are not.
    """
    if index.device.type != "cpu" or not index.numel():
        return
    if int(index[0]) < 0 or int(index[-1]) >= end or (index.numel() > 1 and not bool((index[1:] > index[:-1]).all())):
        raise ValueError(f"{name}: {int(index[0])} to {int(index[-1])} are not strictly increasing indices below {end}")
