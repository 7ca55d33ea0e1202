"""Who may look at a live page: loopback by default, elsewhere only who brings the page's token."""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie

from memdecay_agents.errors import ConfigError

LEAST_TOKEN_CHARACTERS = 16
_TOKEN = re.compile(rf"[A-Za-z0-9._~-]{{{LEAST_TOKEN_CHARACTERS},256}}")
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def is_loopback(host: str) -> bool:
    """Whether an address reaches this machine only; a name other than localhost is taken not to."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class PageAccess:
    """Checks requests.

    Args:
        host: the address that the page is bound to.
        token: what a visitor must bring; None: a random one where the address is not loopback, else none is needed.

    Raises:
        ConfigError: a token that is short enough to be guessed, or that an address or a cookie cannot hold.
    """

    def __init__(self, host: str, token: str | None = None) -> None:
        if token is not None and not _TOKEN.fullmatch(token):
            raise ConfigError(
                where="token of the live page",
                rule=f"it should be at least {LEAST_TOKEN_CHARACTERS} letters, digits, dots, dashes and underscores",
                remedy="Leave it out: a random one is made where it is needed.",
            )
        if token is None and not is_loopback(host):
            token = secrets.token_urlsafe(24)
        self.token = token
        self._host = f"[{host}]" if ":" in host else host
        self.cookie = "memdecay-" + secrets.token_hex(4)
        """Name of this page's cookie: browsers share cookies between the ports of a host."""

    def knows_host(self, host_header: str | None) -> bool:
        """Whether a request asks for a name of this page's own.

        Without a token this keeps out other sites whose names were made to point here (DNS rebinding).
        """
        if self.token is not None:
            return True
        name = (host_header or "").strip().lower()
        name = name[: name.rindex("]") + 1] if "]" in name else name.partition(":")[0]
        return name in _LOCAL_NAMES or name == self._host.lower()

    def is_token(self, given: str | None) -> bool:
        """Whether this is the page's token; takes the same time whatever it is."""
        if self.token is None:
            return True
        return hmac.compare_digest((given or "").encode("utf-8", "replace"), self.token.encode())

    def admits(self, headers: Mapping[str, str]) -> bool:
        """Whether a request's own headers bring the token, as a bearer or as this page's cookie."""
        if self.token is None:
            return True
        kind, _, bearer = (headers.get("Authorization") or "").partition(" ")
        if kind.lower() == "bearer" and self.is_token(bearer.strip()):
            return True
        try:
            cookie = SimpleCookie(headers.get("Cookie") or "").get(self.cookie)
        except CookieError:
            return False
        return cookie is not None and self.is_token(cookie.value)

    def set_cookie(self) -> str:
        """The header that lets a browser in which has brought the token."""
        return f"{self.cookie}={self.token}; HttpOnly; SameSite=Lax; Path=/"
