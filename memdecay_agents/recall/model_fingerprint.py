"""Which model a calibration belongs to: told from a checkpoint's files in milliseconds, without reading it whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

_SAMPLE_BYTES = 256
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format itself


def model_fingerprint(folder: Path) -> str | None:
    """A digest of every tensor's name, type, shape and first bytes; None where there are no safetensors files.

    Neither the files' names nor how the tensors are spread over them matter.

    Args:
        folder: a checkpoint.
    """
    tensors: dict[str, tuple[str, list[int], bytes]] = {}
    try:
        for path in sorted(folder.glob("*.safetensors")):
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                if not 2 <= size <= _MAX_HEADER_BYTES:
                    return None
                header = json.loads(file.read(size))
                for name, about in header.items():
                    if name != "__metadata__":
                        first, end = about["data_offsets"]
                        file.seek(8 + size + first)
                        sample = file.read(min(_SAMPLE_BYTES, end - first))
                        tensors[name] = (str(about["dtype"]), list(about["shape"]), sample)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not tensors:
        return None
    digest = hashlib.sha256()
    for name, (dtype, shape, sample) in sorted(tensors.items()):
        digest.update(json.dumps([name, dtype, shape]).encode())
        digest.update(sample)
    return digest.hexdigest()
