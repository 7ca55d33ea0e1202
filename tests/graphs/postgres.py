"""A PostgreSQL server of the tests' own, where its programs are installed: a socket in a temporary folder."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def programs() -> Path | None:
    """Folder of initdb and pg_ctl: on the path, or where Debian keeps them."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return folders[-1].parent if folders else None


def reason_to_skip() -> str | None:
    """Why no server can be started here; None: one can."""
    if programs() is None:
        return "PostgreSQL's initdb is not installed"
    if os.geteuid() == 0 and _other_user() is None:
        return "PostgreSQL refuses to run as root, and there is no user 'postgres'"
    return None


@contextmanager
def server() -> Iterator[str]:
    """Start a server, yield its connection string, and stop it."""
    folder, binaries = Path(tempfile.mkdtemp(prefix="memdecay-pg-")), programs()
    assert binaries is not None
    user = _other_user() if os.geteuid() == 0 else None
    if user:
        shutil.chown(folder, user)
    folder.chmod(0o755)
    data = folder / "data"

    def call(*command: str) -> None:
        program = [str(binaries / command[0]), *command[1:]]
        subprocess.run(program, check=True, user=user, cwd=folder, timeout=60, stdout=subprocess.DEVNULL)

    try:
        call("initdb", "-D", str(data), "-U", "postgres", "--auth=trust", "--no-sync", "--locale=C", "-E", "UTF8")
        options = f"-c listen_addresses='' -c fsync=off -k {folder}"
        call("pg_ctl", "-D", str(data), "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"host={folder} user=postgres dbname=postgres"
        finally:
            call("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _other_user() -> str | None:
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return None
