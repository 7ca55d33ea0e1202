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
        key: what was measured. Parts of another key are left alone.
        code: which code measured. Parts of other code are left alone too.
        any_code: parts that other code has finished count as long as this code has none of that name.
    """

    def __init__(self, path: Path, key: str, code: str = "", *, any_code: bool = False) -> None:
        self.path, self.key, self.code = path, key, code
        self._done: dict[str, dict[str, Any]] = {}
        self._code_of: dict[str, str] = {}
        self._new: set[str] = set()
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    part = json.loads(line)
                    name, values, its_code = part["name"], part["values"], part.get("code", "")
                    wanted = part["key"] == key and (any_code or its_code == code)
                except (ValueError, KeyError, TypeError, AttributeError):
                    continue
                if wanted and (its_code == code or self._code_of.get(name) != code):
                    self._done[name], self._code_of[name] = values, its_code

    def __contains__(self, name: str) -> bool:
        return name in self._done

    @property
    def of_other_code(self) -> dict[str, str]:
        """The code of each part that other code has finished, by name."""
        return {name: code for name, code in self._code_of.items() if code != self.code and name in self._done}

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
                line = json.dumps({"key": self.key, "code": self.code, "name": name, "values": values})
                file.write(("\n" if torn else "") + line + "\n")
            self._done[name], self._code_of[name] = json.loads(json.dumps(values)), self.code
            self._new.add(name)
        return self._done[name]
