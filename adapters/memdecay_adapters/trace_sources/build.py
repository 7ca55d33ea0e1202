"""Fetch the data sets' packages into a folder of the cache and write trace files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from memdecay_adapters.models.default_model import cache_folder
from memdecay_agents.errors import TraceError


class Source(NamedTuple):
    """Where a trace file comes from."""

    module: str
    """Program that prints it."""
    argument: str
    package: str
    """Installed without its own requirements, most of which are model providers' clients."""
    needs: tuple[str, ...]
    """What its tool back ends import."""


SOURCES: Mapping[str, Source] = {
    "bfcl_multi_turn": Source("bfcl", "multi_turn", "bfcl-eval==2026.3.23", ("mpmath",)),
    "bfcl_memory": Source("bfcl", "memory", "bfcl-eval==2026.3.23", ("mpmath",)),
    "agentdojo": Source(
        "agentdojo", "", "agentdojo==0.1.35", ("deepdiff", "docstring-parser", "email-validator", "pydantic[email]")
    ),
}


def build(names: list[str], out: Path, say: Callable[[str], None], packages: Path | None = None) -> list[Path]:
    """Write trace files.

    Args:
        names: keys of ``SOURCES``.
        out: folder for ``<name>.jsonl``.
        say: told what is done.
        packages: where the data sets' packages are installed; by default in the user's cache.

    Raises:
        TraceError: unknown name, the packages cannot be installed, or a program failed; its last line is shown.
    """
    for name in names:
        if name not in SOURCES:
            raise TraceError(
                where=f"trace source {name!r}", rule=f"unknown; known are {', '.join(SOURCES)}", remedy="Use these."
            )
    folder = packages or cache_folder() / "trace-sources"
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name in names:
        source = SOURCES[name]
        say(f"installing {source.package}")
        _install(folder / source.module, source)
        say(f"writing {name}.jsonl")
        written.append(_write(folder / source.module, name, source, out))
    return written


def _install(folder: Path, source: Source) -> None:
    done = folder / f".{source.package}"
    if done.exists():
        return
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(folder)]
    _run([*pip, "--upgrade", *source.needs], f"installing what {source.package} needs")
    _run([*pip, "--upgrade", "--no-deps", source.package], f"installing {source.package}")
    done.touch()


def _write(folder: Path, name: str, source: Source, out: Path) -> Path:
    path = out / f"{name}.jsonl"
    command = [sys.executable, "-m", f"memdecay_adapters.trace_sources.{source.module}", source.argument]
    # behind what is installed here: the data sets' packages bring versions of shared ones that are not wanted
    places = [place for place in sys.path if place] + [str(folder)]
    text = _run(command, f"replaying {name}", {**os.environ, "PYTHONPATH": os.pathsep.join(places)})
    path.write_text(text, encoding="utf-8")
    return path


def _run(command: list[str], what: str, environment: Mapping[str, str] | None = None) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or ["no message"]
        raise TraceError(where=what, rule=lines[-1], remedy="Check the network and the free space of the cache folder.")
    return ended.stdout
