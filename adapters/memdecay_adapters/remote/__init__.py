"""The client of a server that `memdecay serve` has started; imports no vLLM.

remote_engine   an engine elsewhere: prompts, hints and sampling go there, streams and results come back
connection      its HTTP, on an event loop in a thread of its own
turn            a request: server-sent events become chunks and a result
sampling        sampling parameters without vLLM
shared          one engine for equal addresses
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memdecay_adapters.remote.remote_engine import RemoteEngine, RemoteSession
    from memdecay_adapters.remote.sampling import RemoteSampling

_HOME = {"RemoteEngine": "remote_engine", "RemoteSampling": "sampling", "RemoteSession": "remote_engine"}

__all__ = ["RemoteEngine", "RemoteSampling", "RemoteSession"]


def __getattr__(name: str) -> object:
    import importlib

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
