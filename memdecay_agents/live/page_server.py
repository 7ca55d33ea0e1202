"""The live page: a read-only HTTP server of a few fixed files and one snapshot, in a thread.

Nothing can be changed through it. It is bound to loopback unless told otherwise; elsewhere a random token is needed.
Everything it serves comes from this package; its content security policy allows nothing else. It speaks plain HTTP: put
a proxy with TLS before it where others could listen.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from memdecay_agents.errors import ConfigError, MemDecayError
from memdecay_agents.live.page_access import PageAccess
from memdecay_agents.live.snapshot import EngineSnapshot
from memdecay_agents.pictures.memory_page import web_file

SNAPSHOT_ROUTES = ("/snapshot.json", "/v1/memdecay/snapshot")
"""The second one is `memdecay serve`'s, so that ``memdecay top`` reads both."""
CACHE_SECONDS = 0.5
"""Many viewers ask an engine no oftener than this."""
MOST_CONNECTIONS = 32
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


class LivePage:
    """A live page of an engine, served until it is closed.

    Args:
        source: gives the newest snapshot; called from any thread.
        host: address to listen on.
        port: port to listen on; 0: any free one.
        token: what visitors must bring; None: a random one unless the address is loopback.

    Raises:
        ConfigError: the address cannot be bound, or the token is too short.
    """

    def __init__(
        self,
        source: Callable[[], EngineSnapshot],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
    ) -> None:
        self._access = PageAccess(host, token)
        self._source = source
        self._lock = threading.Lock()
        self._cached: tuple[float, int, bytes] = (float("-inf"), 0, b"")
        handler = type("Handler", (_Handler,), {"page": self})
        try:
            self._server = _Server((host, port), handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                where=f"live page on {host}, port {port}",
                rule=f"it cannot listen there: {error}",
                remedy="Name an address of this machine and a free port (0: any).",
            ) from error
        self.port: int = self._server.server_address[1]
        """The port that it listens on."""
        name = f"[{host}]" if ":" in host else host
        self.address = f"http://{name}:{self.port}/"
        """Without the token."""
        self._thread = threading.Thread(target=self._server.serve_forever, name="memdecay-live-page", daemon=True)
        self._thread.start()

    @property
    def token(self) -> str | None:
        """What visitors must bring; None: nothing."""
        return self._access.token

    @property
    def url(self) -> str:
        """What to open in a browser, with the token where one is needed."""
        return self.address if self.token is None else f"{self.address}?token={self.token}"

    def close(self) -> None:
        """Stop serving; idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def snapshot(self) -> tuple[int, bytes]:
        """HTTP status and JSON of the newest snapshot, at most ``CACHE_SECONDS`` old."""
        with self._lock:
            taken, status, body = self._cached
            if time.monotonic() - taken >= CACHE_SECONDS:
                status, body = self._take()
                self._cached = (time.monotonic(), status, body)
            return status, body

    def _take(self) -> tuple[int, bytes]:
        try:
            return HTTPStatus.OK, self._source().model_dump_json().encode("utf-8", "replace")
        except MemDecayError as error:
            told = {"error": {"code": error.code, "message": str(error)}}
            return HTTPStatus.SERVICE_UNAVAILABLE, json.dumps(told).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in address[0]:
            import socket

            self.address_family = socket.AF_INET6
        self._slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve one connection in a thread of its own, while there are not too many."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """As its base, and give the place back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A visitor that left is no fault of ours."""


class _Handler(BaseHTTPRequestHandler):
    page: LivePage
    server_version, sys_version = "memdecay", ""
    timeout = 10
    """Seconds for a visitor to say what it wants."""

    def do_GET(self) -> None:
        """Serve a file or the snapshot."""
        access = self.page._access
        url = urlsplit(self.path)
        if not access.knows_host(self.headers.get("Host")):
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"This page is not served under that name.\n")
            return
        given = parse_qs(url.query).get("token", [])
        if url.path == "/" and given and access.token is not None and access.is_token(given[0]):
            cookie = {"Location": "/", "Set-Cookie": access.set_cookie()}
            self._answer(HTTPStatus.SEE_OTHER, "text/plain", b"", cookie)
            return
        if not access.admits(dict(self.headers.items())):
            text = b"This page needs its token: open the address that was printed when it started.\n"
            self._answer(HTTPStatus.UNAUTHORIZED, "text/plain", text, {"WWW-Authenticate": "Bearer"})
            return
        if url.path in SNAPSHOT_ROUTES:
            status, body = self.page.snapshot()
            self._answer(status, "application/json", body)
        elif url.path in FILES:
            kind, content = FILES[url.path]
            self._answer(HTTPStatus.OK, kind, content().encode())
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"There is no such page.\n")

    do_HEAD = do_GET

    def _refuse(self) -> None:
        self._answer(
            HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"This page can only be read.\n", {"Allow": "GET, HEAD"}
        )

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def _answer(self, status: int, kind: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A malformed request gets an answer with the same headers as any other."""
        self.close_connection = True
        self._answer(code, "text/plain", b"That is no request that this page understands.\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: requests carry the token."""


def _live_file(name: str) -> str:
    return resources.files("memdecay_agents.live").joinpath("web", name).read_text(encoding="utf-8")


FILES: dict[str, tuple[str, Callable[[], str]]] = {
    "/": ("text/html", lambda: _live_file("live.html")),
    "/live.css": ("text/css", lambda: web_file("theme.css") + _live_file("live.css")),
    "/hatches.js": ("text/javascript", lambda: web_file("hatches.js")),
    "/live.js": ("text/javascript", lambda: _live_file("live.js")),
}
"""All that is served beside the snapshot: path to content type and content."""
