"""One remote engine for equal addresses: chat models that talk to the same server share its connections."""

from __future__ import annotations

import threading
from typing import Any

from memdecay_adapters.remote.remote_engine import RemoteEngine

_lock = threading.Lock()
_engines: dict[tuple[Any, ...], RemoteEngine] = {}


def shared_remote_engine(
    base_url: str, api_key: str | None, tokenizer: Any, read_timeout_seconds: float | None
) -> RemoteEngine:
    """The open engine with exactly these settings, or a new one; see `RemoteEngine`."""
    key = _key(base_url, api_key, tokenizer, read_timeout_seconds)
    with _lock:
        engine = _engines.get(key)
        if engine is None or engine.closed:
            engine = RemoteEngine(
                base_url, api_key=api_key, tokenizer=tokenizer, read_timeout_seconds=read_timeout_seconds
            )
            _engines[key] = engine
        return engine


def open_remote_engine(
    base_url: str, api_key: str | None, tokenizer: Any, read_timeout_seconds: float | None
) -> RemoteEngine | None:
    """The open engine with exactly these settings; None: nobody has connected yet."""
    engine = _engines.get(_key(base_url, api_key, tokenizer, read_timeout_seconds))
    return None if engine is None or engine.closed else engine


def _key(base_url: str, api_key: str | None, tokenizer: Any, read_timeout_seconds: float | None) -> tuple[Any, ...]:
    named = tokenizer if tokenizer is None or isinstance(tokenizer, str) else id(tokenizer)
    return base_url, api_key, named, read_timeout_seconds
