"""The kernels' source files, as NVRTC takes them: by name, without a folder to search."""

from __future__ import annotations

import hashlib
from pathlib import Path

_FOLDER = Path(__file__).parent / "src"
_SHARED = Path(__file__).parents[1] / "native" / "element_math.h"
MAIN = "kernels.cu"
"""The file that includes the others."""


def source_files() -> dict[str, bytes]:
    """Contents by name, sorted by name."""
    paths = [*_FOLDER.iterdir(), _SHARED]
    return {path.name: path.read_bytes() for path in sorted(paths, key=lambda path: path.name) if path.is_file()}


def source_digest(files: dict[str, bytes]) -> str:
    """SHA-256 over names and contents, in hexadecimal: says whether compiled kernels belong to these sources."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
