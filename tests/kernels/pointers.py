"""The pointers in a kernel's parameters, for launchers that move memory before a launch."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch


class Pointer(NamedTuple):
    """One pointer of a struct."""

    place: int
    """In the struct, in bytes."""
    storage: int
    """Index of the storage that it leads into."""
    byte: int
    """Within the storage."""


def storages_of(tensors: Sequence[torch.Tensor]) -> list[torch.UntypedStorage]:
    """The distinct storages with any memory."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
    return [storage for address, storage in storages.items() if address]


def pointers_of(parameters: ctypes.Structure, storages: Sequence[torch.UntypedStorage]) -> Iterator[Pointer]:
    """All pointers that are not null.

    Raises:
        ValueError: one leads into none of the storages.
    """
    raw = bytes(parameters)
    for name, kind, *_ in parameters._fields_:
        if kind is ctypes.c_void_p or getattr(kind, "_type_", None) is ctypes.c_void_p:
            field = getattr(type(parameters), name)
            for place in range(field.offset, field.offset + field.size, ctypes.sizeof(ctypes.c_void_p)):
                address = int.from_bytes(raw[place : place + 8], "little")
                if address:
                    yield Pointer(place, *_locate(address, storages))


def _locate(address: int, storages: Sequence[torch.UntypedStorage]) -> tuple[int, int]:
    for index, storage in enumerate(storages):
        if storage.data_ptr() <= address < storage.data_ptr() + storage.nbytes():
            return index, address - storage.data_ptr()
    raise ValueError(f"a pointer to {address:#x}, which is in none of the tensors")
