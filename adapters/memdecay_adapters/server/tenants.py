"""From an API key to a tenant: whose sessions and cached prefixes a request may touch.

A tenant's name is an HMAC of its key. It names the tenant in logs, metrics and summaries, and from it nobody learns
the key, not even by trying keys: the HMAC's own secret never leaves the server.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence

SECRET_VARIABLE = "MEMDECAY_TENANT_SECRET"
"""Environment variable with the secret of the HMAC; unset: a new one at each start, as sessions end with the server."""

OPEN_TENANT = "default"
"""The tenant of everybody, on a server without API keys."""


class Tenants:
    """The tenants of one server.

    Args:
        api_keys: the keys that vLLM's authentication accepts; none: the server is open.
        secret: of the HMAC; None: from the environment, or random.
    """

    def __init__(self, api_keys: Sequence[str], secret: bytes | None = None) -> None:
        self.are_told_apart = bool(api_keys)
        """Whether the server has keys at all."""
        if secret is None:
            secret = os.environ.get(SECRET_VARIABLE, "").encode() or os.urandom(32)
        self._secret = secret

    def of(self, authorization: str | None) -> str:
        """The tenant of a request that has passed authentication.

        Args:
            authorization: its header of that name, "Bearer KEY".
        """
        if not self.are_told_apart:
            return OPEN_TENANT
        key = (authorization or "").partition(" ")[2]
        return "key-" + hmac.new(self._secret, key.encode("utf-8", "replace"), hashlib.sha256).hexdigest()[:32]
