"""Finished pieces of an evaluation on disk, so that it goes on after a kill where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import memdecay_agents
from memdecay_agents.evaluation.outcomes import FactOutcome


class OutcomeStore:
    """A file of finished pieces, one JSON line each; a line that was cut off by a kill is done again.

    Args:
        path: the file; made when the first piece is finished.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._done: dict[str, list[FactOutcome]] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    piece = json.loads(line)
                    self._done[piece["key"]] = [FactOutcome(*values) for values in piece["outcomes"]]
                except (ValueError, KeyError, TypeError):
                    continue

    def __contains__(self, key: str) -> bool:
        return key in self._done

    def get(self, key: str, make: Callable[[], Sequence[FactOutcome]]) -> list[FactOutcome]:
        """The piece of this key, made and written down if it is not there."""
        if key not in self._done:
            outcomes = list(make())
            self.path.parent.mkdir(parents=True, exist_ok=True)
            torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
            with self.path.open("a", encoding="utf-8") as file:
                file.write(("\n" if torn else "") + json.dumps({"key": key, "outcomes": outcomes}) + "\n")
            self._done[key] = outcomes
        return self._done[key]


def code_digest(*packages: Path) -> str:
    """A digest of the core's and of further packages' sources: results of other code are not taken over."""
    digest = hashlib.sha256()
    for package in (Path(memdecay_agents.__file__).parent, *packages):
        for path in sorted(package.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
