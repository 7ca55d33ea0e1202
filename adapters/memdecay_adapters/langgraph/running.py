"""The wrapped nodes that run now, to tell a call that lost its metadata from a plain one.

A thread that a node starts by itself carries none of langgraph's context, and nothing in the thread says where
it came from. What can be known is whether it began while a wrapped node ran: each run of a node is a record of
its own here, with the threads that were there before it, and is gone when the node is done.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from langchain_core.runnables.config import var_child_runnable_config

from memdecay_adapters.langgraph.identity import DEFAULT_AGENT, CallIdentity


class LostMetadataWarning(UserWarning):
    """A call came from a thread that a node started, where langgraph's metadata does not reach it."""


@dataclass(eq=False, slots=True)
class _Run:
    """One run of a wrapped node."""

    node: str
    older_threads: frozenset[int | None]
    """Identifiers of the threads that were there when it began."""
    warned: bool = False


_runs: set[_Run] = set()
_lock = threading.Lock()


@contextmanager
def running_node(name: str) -> Iterator[None]:
    """A wrapped node's body runs inside.

    Args:
        name: the node's name, for the warning.
    """
    run = _Run(name, frozenset(thread.ident for thread in threading.enumerate()))
    with _lock:
        _runs.add(run)
    try:
        yield
    finally:
        with _lock:
            _runs.discard(run)


def warn_if_lost(identity: CallIdentity) -> None:
    """Warn about a call that says nothing of itself, from a thread that began while a wrapped node ran.

    At most once a run of the node; Python shows the same warning of a node once a process, as it does with all.
    """
    if identity.in_graph or identity.thread_id is not None or identity.agent != DEFAULT_AGENT:
        return
    if var_child_runnable_config.get() is not None:
        return
    here = threading.get_ident()
    with _lock:
        suspects = [run for run in _runs if here not in run.older_threads]
        if not suspects or all(run.warned for run in suspects):
            return
        for run in suspects:
            run.warned = True
    nodes = ", ".join(sorted({repr(run.node) for run in suspects}))
    warnings.warn(
        f"A chat model was called from a thread that was started while the node {nodes} ran and that carries no "
        f"langgraph metadata: the call counts for the agent {DEFAULT_AGENT!r} and gets a session of its own. Inside "
        "a node, start threads with contextvars.copy_context().run, or pass agent= and thread_id= to the call.",
        LostMetadataWarning,
        stacklevel=2,
    )
