"""Finished parts of a long measurement on disk, so that it goes on after a kill where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


class PartStore:
    """A file of finished parts, one JSON line each; a line that was cut off by a kill is measured again.

    Args:
        path: the file; made when the first part is finished.
        key: what the parts were measured with. Parts of another key are left alone.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key
        self._done: dict[str, dict[str, Any]] = {}
        self._new: set[str] = set()
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    part = json.loads(line)
                    if part["key"] == key:
                        self._done[part["name"]] = part["values"]
                except (ValueError, KeyError, TypeError):
                    continue

    def __contains__(self, name: str) -> bool:
        return name in self._done

    def find(self, name: str) -> dict[str, Any] | None:
        """A finished part's values, or None."""
        return self._done.get(name)

    def forget(self, name: str) -> None:
        """Measure a part again when it is asked for; once, for its new values count."""
        if name not in self._new:
            self._done.pop(name, None)

    def measure(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The values of this part, measured and written down if they are not there."""
        if name not in self._done:
            values = make()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
            with self.path.open("a", encoding="utf-8") as file:
                line = json.dumps({"key": self.key, "name": name, "values": values})
                file.write(("\n" if torn else "") + line + "\n")
            self._done[name] = json.loads(json.dumps(values))
            self._new.add(name)
        return self._done[name]
