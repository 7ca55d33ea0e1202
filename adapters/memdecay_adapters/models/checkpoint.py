"""Whether a local folder is a whole checkpoint, told from file headers before vLLM spends time on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from memdecay_agents.errors import ModelError

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format itself


def check_checkpoint(folder: Path, *, require_weights: bool) -> None:
    """Check a Hugging Face checkpoint's configuration and the extent of its weight files.

    A safetensors file says in its header how long it is; other formats are taken as they are, and no file is
    read whole.

    Args:
        folder: the checkpoint.
        require_weights: whether weights must be there (not for vLLM's ``load_format="dummy"``).

    Raises:
        ModelError: no or no readable ``config.json``, no weights, a missing shard, or a truncated or garbled
            safetensors file.
    """
    if not (folder / "config.json").is_file():
        raise _error(folder, "the folder holds no config.json")
    config = _json(folder / "config.json")
    if not isinstance(config, dict) or not (config.get("architectures") or config.get("model_type")):
        raise _error(folder, "its config.json names no architecture")
    for index in folder.glob("*.safetensors.index.json"):
        listed = _json(index)
        shards = listed.get("weight_map") if isinstance(listed, dict) else None
        if not isinstance(shards, dict):
            raise _error(folder, f"{index.name} holds no weight_map")
        if missing := sorted(name for name in set(shards.values()) if not (folder / str(name)).is_file()):
            raise _error(folder, f"{', '.join(map(str, missing[:4]))}, which {index.name} lists, is missing")
    for weights in folder.glob("*.safetensors"):
        _check_extent(folder, weights)
    if require_weights and not any(path.suffix in _WEIGHT_SUFFIXES for path in folder.iterdir()):
        raise _error(folder, f"it holds no weights ({', '.join('*' + suffix for suffix in _WEIGHT_SUFFIXES)})")


def _check_extent(folder: Path, weights: Path) -> None:
    size = weights.stat().st_size
    try:
        with weights.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            if not 2 <= header_bytes <= min(size - 8, _MAX_HEADER_BYTES):
                raise ValueError("no header")
            header = json.loads(file.read(header_bytes))
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        expected = 8 + header_bytes + max(ends, default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise _error(folder, f"{weights.name} is no safetensors file") from error
    if size != expected:
        raise _error(folder, f"{weights.name} has {size} bytes, its header says {expected}")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _error(path.parent, f"{path.name} cannot be read ({error})") from error


def _error(folder: Path, rule: str) -> ModelError:
    return ModelError(
        where=f"model '{folder}'",
        rule=rule,
        remedy="Download the checkpoint again, or give another folder, a Hugging Face id, or nothing at all.",
    )
