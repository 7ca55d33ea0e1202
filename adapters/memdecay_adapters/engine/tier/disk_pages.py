"""Pages of the tier on disk: one file without a name, mapped into memory, gone when its worker is."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from memdecay_agents.errors import ConfigError


def disk_pages(folder: Path | None, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor that lies on disk; what is written to it is as private as the process's memory.

    All of it is taken at once: a disk that is full later would end the process in the middle of a copy.

    Args:
        folder: where the file is made; None: the system's folder for temporary files.
        shape: of the tensor, not empty.
        dtype: of the tensor.

    Raises:
        ConfigError: the folder cannot be written, or has no place for it.
    """
    size = math.prod(shape) * dtype.itemsize
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)
            mapped = mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise ConfigError(
            where=f"HostTier.disk_folder {folder or tempfile.gettempdir()}",
            rule=f"no file of {size} bytes can be made there: {error.strerror}",
            remedy="Name a folder with place for it, or set a smaller disk_bytes.",
        ) from error
    return torch.frombuffer(mapped, dtype=dtype).view(*shape)
