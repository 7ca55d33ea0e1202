"""Options that several commands have for the host tier, and the tier that they make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from memdecay_agents.errors import ConfigError

if TYPE_CHECKING:
    from memdecay_adapters.engine.tier.settings import HostTier

HostMemory = Annotated[
    str | None,
    typer.Option("--host-memory", help="Keep evicted pages in so much host memory (2GiB), and recall them from it."),
]
HostDisk = Annotated[
    str | None, typer.Option("--host-disk", help="Behind --host-memory: so much on disk (20GiB), in a temporary file.")
]


def read_tier(memory: str | None, disk: str | None, profile: Path | None, model_path: str | None) -> HostTier | None:
    """The host tier of a command's options; None: there is none.

    Args:
        memory: bytes with a unit.
        disk: bytes with a unit.
        profile: a calibrated profile, whose retrieval heads count where it has some.
        model_path: what vLLM loads, whose retrieval heads count else; None: without a profile's heads pages come back
            only when they are asked for.

    Raises:
        ConfigError: no sizes, or a disk without memory before it.
    """
    from memdecay_adapters.engine.tier.heads import with_heads
    from memdecay_adapters.engine.tier.settings import HostTier, Recall
    from memdecay_agents.calibration.profiles import ProfileFile

    if memory is None:
        if disk is not None:
            raise ConfigError(
                where=f"--host-disk {disk}", rule="it lies behind --host-memory", remedy="Give --host-memory too."
            )
        return None
    heads = None if profile is None else ProfileFile.load(profile).retrieval_heads
    recall = None if heads is None and model_path is None else Recall(heads=None if heads is None else heads.heads)
    tier = HostTier(
        max_bytes=_bytes("--host-memory", memory),
        disk_bytes=0 if disk is None else _bytes("--host-disk", disk),
        recall=recall,
    )
    return tier if model_path is None else with_heads(tier, model_path)


def _bytes(option: str, text: str) -> int:
    try:
        size = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        size = 0
    if size <= 0:
        raise ConfigError(
            where=f"{option} {text}", rule="it is no size in bytes", remedy="Write a number and a unit: 512MiB, 2GiB."
        )
    return size
