"""Who is calling: the agent path and the thread of a chat model call, read from its run metadata."""

from __future__ import annotations

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
    every ``create_agent`` calls its model node ``model``. An unnamed ``create_agent`` that a tool of a named one runs
    inherits ``lc_agent_name``, and no metadata tells it from a named one there: it counts for the outer agent.

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
