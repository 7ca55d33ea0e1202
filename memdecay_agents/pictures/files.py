"""Writing a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from memdecay_agents.errors import ConfigError


def write_whole(path: str | Path, content: str | bytes) -> Path:
    """Write a file; one that exists is replaced whole or not at all.

    Raises:
        ConfigError: it cannot be written.
    """
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content.encode("utf-8", "replace") if isinstance(content, str) else content)
            Path(temporary).chmod(0o644)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(
            where=str(target), rule=f"it cannot be written: {error.strerror}", remedy="Name another file."
        ) from error
    return target
