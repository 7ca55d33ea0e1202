"""Who is calling: the agent path and the thread of a chat model call, read from its run metadata."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

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


class _GraphWatch:
    """Remembers that this process has run graphs, to tell a lost context from a plain call. Warns once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen_graph = False
        self._warned = False

    def note(self, identity: CallIdentity, metadata: Mapping[str, Any]) -> None:
        """Warn once when a call from a worker thread has no metadata although graphs run here."""
        with self._lock:
            if identity.in_graph:
                self._seen_graph = True
                return
            bare = "thread_id" not in metadata and identity.agent == DEFAULT_AGENT
            in_worker = threading.current_thread() is not threading.main_thread()
            if self._warned or not (bare and in_worker and self._seen_graph):
                return
            self._warned = True
        warnings.warn(
            "A chat model was called from a thread that carries no langgraph metadata: the call counts for "
            f"the agent {DEFAULT_AGENT!r} and gets a session of its own. Inside a node, start threads with "
            "contextvars.copy_context().run, or pass agent= and thread_id= to the call.",
            LostMetadataWarning,
            stacklevel=2,
        )


graph_watch = _GraphWatch()
"""One per process."""
