"""``memdecay top``: a running engine, live: in the terminal, as JSON, or as a page in the browser."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from memdecay_agents.errors import ConfigError, MemDecayError

if TYPE_CHECKING:
    from memdecay_agents.live import EngineSnapshot

KEY_VARIABLE = "MEMDECAY_API_KEY"


def top(
    url: Annotated[
        str, typer.Option(help="Of memdecay serve, or of an engine's own live page (engine.watch().url).")
    ] = "http://127.0.0.1:8000",
    api_key_file: Annotated[
        Path | None, typer.Option(help=f"A file with the server's API key; default: ${KEY_VARIABLE}.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="[FILE]", help="Write snapshots as JSON, one a line ('-': stdout)."),
    ] = None,
    interval: Annotated[float, typer.Option(min=0.2, max=3600.0, help="Seconds between two looks.")] = 1.0,
    web: Annotated[bool, typer.Option("--web", help="Serve a live page instead; it can only be read.")] = False,
    host: Annotated[
        str, typer.Option(help="With --web: address to listen on; beyond this machine a random token is needed.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --web: port to listen on; 0: any.")] = 0,
) -> None:
    """Show agents, sessions, pages by region, budget use, evictions and tokens per second of a running engine.

    With an API key only what is that key's own.
    """
    from rich.console import Console

    from memdecay_adapters.remote.snapshots import RemoteSnapshots
    from memdecay_agents.live import snapshot_table

    if web and once:
        raise ConfigError(where="--web --once", rule="a page is served until it is stopped", remedy="Leave one out.")
    with RemoteSnapshots(url, _key(api_key_file)) as remote, suppress(KeyboardInterrupt):
        if web:
            _serve(remote.snapshot, host, port, json_file)
        elif json_file is not None:
            with _opened(json_file) as lines:
                _write(remote.snapshot, lines, once, interval)
        elif once:
            Console().print(snapshot_table(remote.snapshot()))
        else:
            _watch(remote.snapshot, interval)


def _key(path: Path | None) -> str | None:
    if path is None:
        return os.environ.get(KEY_VARIABLE) or None
    try:
        keys = path.read_text(encoding="utf-8").split()
    except (OSError, ValueError) as error:
        raise ConfigError(
            where=f"--api-key-file {path}", rule=f"it cannot be read: {error}", remedy="Give a file with one key."
        ) from error
    if len(keys) != 1:
        raise ConfigError(
            where=f"--api-key-file {path}", rule=f"it holds {len(keys)} keys", remedy="Give a file with one key."
        )
    return keys[0]


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    if str(path) == "-":
        yield sys.stdout
        return
    try:
        with path.open("w", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise ConfigError(
            where=f"--json {path}", rule=f"it cannot be written: {error.strerror}", remedy="Name another file."
        ) from error


def _write(take: Callable[[], EngineSnapshot], lines: TextIO, once: bool, interval: float) -> None:
    while True:
        print(take().model_dump_json(), file=lines, flush=True)
        if once:
            return
        time.sleep(interval)


def _watch(take: Callable[[], EngineSnapshot], interval: float) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from memdecay_agents.live import snapshot_table
    from memdecay_agents.live.table import plain

    console = Console()
    table = shown = snapshot_table(take())  # a wrong address or key ends here
    with Live(shown, console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            live.update(shown, refresh=True)
            time.sleep(interval)
            try:
                table = shown = snapshot_table(take())
            except MemDecayError as error:  # it may come back
                shown = Group(table, Text(f"no news: {plain(str(error), 400)}", style="bold red"))


def _serve(take: Callable[[], EngineSnapshot], host: str, port: int, json_file: Path | None) -> None:
    import threading

    from rich.console import Console

    from memdecay_agents.live import LivePage

    take()  # a wrong address or key ends here
    with LivePage(take, host=host, port=port) as page:
        if json_file is not None:
            with _opened(json_file) as lines:
                print(json.dumps({"schema_version": 1, "command": "top", "url": page.url}), file=lines, flush=True)
        else:
            console = Console(highlight=False)
            console.print(f"live page: {page.url}", soft_wrap=True, markup=False)
            if page.token is not None:
                console.print("It is plain HTTP: who listens on the way can read the token and the page.")
            console.print("Ctrl+C ends it.")
        threading.Event().wait()
