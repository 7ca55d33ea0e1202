"""Who is calling: the agent path and the thread of a chat model call, read from its run metadata."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from langchain_core.runnables.config import var_child_runnable_config

DEFAULT_AGENT = "default"
"""Agent of a call that comes from no graph and names none."""


class CallIdentity(NamedTuple):
    """Who a call belongs to."""

    agent: str
    """Path of the agent: names joined by ``|``, without task ids ("supervisor|researcher")."""
    thread_id: str | None
    """Conversation thread of the checkpointer, if there is one."""
    in_graph: bool
    """Whether langgraph's metadata reached the call."""


def strip_task_ids(checkpoint_ns: str) -> str:
    """Turn a checkpoint namespace into a stable path.

    ``"supervisor:5b1c...|agent:77f0..."`` becomes ``"supervisor|agent"``. The task ids differ at every step
    and thread; a bare number, which langgraph adds when a node calls a subgraph again, is dropped too.
    """
    names = (part.split(":", 1)[0] for part in checkpoint_ns.split("|"))
    return "|".join(name for name in names if name and not name.isdigit())


def agent_path(metadata: Mapping[str, Any], agent: str | None = None) -> str:
    """Return the agent of a call.

    First match wins: ``agent`` (the ``agent`` setting), ``lc_agent_name`` (set by ``create_agent(name=)``),
    the checkpoint namespace without task ids, ``"default"``. The node's name alone would be ambiguous:
    every ``create_agent`` calls its model node ``model``.

    Args:
        metadata: ``run_manager.metadata``. ``langgraph_checkpoint_ns`` is preferred to ``checkpoint_ns``,
            which inside a subgraph is still the parent's.
        agent: name from a call keyword or from node settings.
    """
    if agent:
        return agent
    name = metadata.get("lc_agent_name")
    if isinstance(name, str) and name:
        return name
    for key in ("langgraph_checkpoint_ns", "checkpoint_ns"):
        namespace = metadata.get(key)
        if isinstance(namespace, str) and (path := strip_task_ids(namespace)):
            return path
    return DEFAULT_AGENT


def identify(metadata: Mapping[str, Any], agent: str | None = None) -> CallIdentity:
    """Read the identity of a call from its run metadata (see `agent_path`)."""
    thread_id = metadata.get("thread_id")
    in_graph = "langgraph_node" in metadata
    return CallIdentity(
        agent=agent_path(metadata, agent),
        thread_id=None if thread_id is None else str(thread_id),
        in_graph=in_graph,
    )


class LostMetadataWarning(UserWarning):
    """A call came from a bare thread inside a graph's run, where langgraph's metadata does not reach it."""


class NodeWatch:
    """Counts the wrapped nodes that run now, to tell a lost context from a plain call. Warns once."""

    def __init__(self) -> None:
        """Watch; no node runs yet."""
        self._lock = threading.Lock()
        self._running = 0
        self._warned = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """A wrapped node's body runs inside."""
        with self._lock:
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1

    def note(self, identity: CallIdentity) -> None:
        """Warn once when a call comes from a bare thread while nodes run."""
        if identity.in_graph or identity.thread_id is not None or identity.agent != DEFAULT_AGENT:
            return
        in_main = threading.current_thread() is threading.main_thread()
        if in_main or var_child_runnable_config.get() is not None:
            return
        with self._lock:
            if self._warned or not self._running:
                return
            self._warned = True
        warnings.warn(
            "A chat model was called from a thread that carries no langgraph metadata, while a node runs: "
            f"the call counts for the agent {DEFAULT_AGENT!r} and gets a session of its own. Inside a node, "
            "start threads with contextvars.copy_context().run, or pass agent= and thread_id= to the call.",
            LostMetadataWarning,
            stacklevel=2,
        )


node_watch = NodeWatch()
"""One per process."""
