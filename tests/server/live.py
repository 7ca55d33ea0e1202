"""`memdecay serve` in a process of its own, as a user starts it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]
START_SECONDS = 240


def entry_points_beside(folder: Path) -> Path:
    """A folder for the path, with what this source tree has in entry points and the installation does not yet."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = []
    for group, entries in declared.items():
        known = {entry.name for entry in metadata.entry_points(group=group)}
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items() if name not in known)]
    info = folder / "memdecay_tree-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: memdecay-tree\nVersion: 0\n")
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(folder: Path) -> dict[str, str]:
    """This process's, with the source tree on the path and nothing that steers vLLM's embedded engine."""
    path = [folder, ROOT, ROOT / "adapters", ROOT / "kernels", os.environ.get("PYTHONPATH", "")]
    dropped = {"VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_PLUGINS", "VLLM_LOGGING_LEVEL"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, path)), "OMP_NUM_THREADS": "1"}


@contextmanager
def memdecay_serve(
    folder: Path, model: str, config: dict[str, object], keys: Sequence[str], flags: Sequence[str]
) -> Iterator[str]:
    """Start a server, wait until it is up, and end it; gives its address."""
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "keys").write_text("\n".join(keys))
    port = free_port()
    command = [
        sys.executable, "-m", "memdecay_agents", "--debug", "serve", model, "--config", str(folder / "config.json"),
        "--api-keys", str(folder / "keys"), "--dtype", "float32", "--port", str(port), "--check-integrity", "--",
        *flags,
    ]  # fmt: skip
    log = folder / "server.log"
    path = entry_points_beside(folder / "entry-points")
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, env=environment(path), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        give_up = time.monotonic() + START_SECONDS
        while not _is_up(url):
            assert server.poll() is None, log.read_text()[-6000:]
            assert time.monotonic() < give_up, log.read_text()[-6000:]
            time.sleep(0.25)
        yield url
        assert server.poll() is None, "the server lived through all tests"
    finally:
        server.terminate()
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False
