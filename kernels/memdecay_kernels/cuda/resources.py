"""What each kernel takes of a multiprocessor, read from ptxas' account in the compiler's log."""

from __future__ import annotations

import re
from typing import NamedTuple

_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


class KernelResources(NamedTuple):
    """One kernel on one architecture."""

    registers: int
    """32-bit registers of a thread."""
    shared_bytes: int
    """Shared memory of a block."""
    stack_bytes: int
    """Local memory of a thread."""
    spill_store_bytes: int
    """Registers written to local memory, for lack of registers."""
    spill_load_bytes: int
    """And read back."""


def parse_resources(log: str) -> dict[str, KernelResources]:
    """Resources by kernel from the log of one compilation.

    Raises:
        ValueError: an entry function without its account, as a changed format of the log would leave it.
    """
    found: dict[str, KernelResources] = {}
    entries = list(_ENTRY.finditer(log))
    for entry, following in zip(entries, [*entries[1:], None], strict=True):
        account = log[entry.end() : following.start() if following else len(log)]
        spills, registers, shared = (pattern.search(account) for pattern in (_SPILLS, _REGISTERS, _SHARED))
        if spills is None or registers is None:
            raise ValueError(f"the compiler's log has no account of '{entry[1]}'")
        stack, stores, loads = (int(group) for group in spills.groups())
        found[entry[1]] = KernelResources(int(registers[1]), int(shared[1]) if shared else 0, stack, stores, loads)
    return found
