"""Snapshots of an engine elsewhere: of `memdecay serve`, or of a live page."""

from __future__ import annotations

from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit, urlunsplit

import httpx

from memdecay_adapters.remote.connection import Connection
from memdecay_adapters.server.wire import SNAPSHOT
from memdecay_agents.errors import ConfigError
from memdecay_agents.live.snapshot import EngineSnapshot, read_snapshot


class RemoteSnapshots:
    """Asks one server for snapshots. With an API key it sees that tenant's part only.

    Args:
        url: of ``memdecay serve``, or what a live page printed, with its token.
        api_key: of the server, or the page's token; None: an open one.
        transport: in place of the network, for tests.

    Raises:
        ConfigError: the address is no HTTP address.
    """

    def __init__(self, url: str, api_key: str | None = None, *, transport: httpx.AsyncBaseTransport | None = None):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(
                where=f"address {url.partition('?')[0]!r}",
                rule="it is no HTTP address",
                remedy="Give http://HOST:PORT of `memdecay serve`, or the address that a live page printed.",
            )
        token = parse_qs(parts.query).get("token", [None])[0]
        base = urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))
        self._connection = Connection(base, token or api_key, read_timeout_seconds=30.0, transport=transport)

    def snapshot(self) -> EngineSnapshot:
        """The newest one.

        Raises:
            RemoteError: the server cannot be reached, refuses the key, or knows no snapshots.
        """
        body = self._connection.request("GET", SNAPSHOT)
        return read_snapshot(body, f"{self._connection.base_url}{SNAPSHOT}")

    def close(self) -> None:
        """End the connection; idempotent."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
