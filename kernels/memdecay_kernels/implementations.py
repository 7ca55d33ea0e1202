"""Which implementation serves an operation: the native library where it was built, else the torch reference.

`MEMDECAY_KERNELS` chooses by name: ``auto`` (default), ``reference``, or an instruction set of the native library
(``portable``, ``avx2``, ``avx512``, ``avx512bf16``, ``amx``), which is refused where the processor or the build lacks
it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from memdecay_kernels.native.library import Library

_VARIABLE = "MEMDECAY_KERNELS"


def native_for(operation: str, device: torch.device) -> Any | None:
    """The module that serves an operation on a device, or None: the reference does.

    Args:
        operation: its public name.
        device: where the data is.
    """
    module = _native(device.type, os.environ.get(_VARIABLE, "auto"))
    return module if module is not None and hasattr(module, operation) else None


@functools.lru_cache(maxsize=16)
def _native(device_type: str, choice: str) -> ModuleType | None:
    if choice == "reference":
        return None
    if device_type == "cpu":
        return None if _library(choice) is None else importlib.import_module("memdecay_kernels.native.ops")
    if device_type == "cuda" and importlib.util.find_spec("memdecay_kernels.cuda.ops") is not None:
        return importlib.import_module("memdecay_kernels.cuda.ops")
    return None


def native_library() -> Library | None:
    """The native library for arrays on the host, or None: the caller's own reference serves."""
    return _library(os.environ.get(_VARIABLE, "auto"))


@functools.lru_cache(maxsize=8)
def _library(choice: str) -> Library | None:
    if choice == "reference":
        return None
    from memdecay_kernels.native import library

    return library.load(choice)


def implementation_name() -> str:
    """What serves operations on the host: "reference", or "native" with the instruction set, as in "native (amx)"."""
    loaded = native_library()
    return "reference" if loaded is None else f"native ({loaded.instruction_set})"
