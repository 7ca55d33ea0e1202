"""``wrap``: give the nodes of an existing graph their regions, pins and budgets.

A compiled graph is copied and never changed; a builder is changed in place and handed back. Both end with
the same thing: node metadata that reaches the chat model, and bodies that stamp what they write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from langchain_core.runnables import Runnable
from langgraph.channels import BinaryOperatorAggregate
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.pregel import Pregel

from memdecay_adapters.langgraph.body import wrap_body
from memdecay_adapters.langgraph.metadata import (
    METADATA_KEY,
    NodeSettings,
    check_regions,
    merge_settings,
    parse_settings,
)
from memdecay_agents.agent_budgets import AgentBudget
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ConfigError

GraphT = TypeVar("GraphT", bound="StateGraph[Any, Any, Any, Any] | Pregel[Any, Any, Any, Any]")


def wrap(
    graph: GraphT,
    nodes: Mapping[str, Mapping[str, Any] | NodeSettings] | None = None,
    *,
    pin: Sequence[str] | str | None = None,
    budget: int | AgentBudget | None = None,
    config: MemDecayConfig | None = None,
) -> GraphT:
    """Give nodes of a graph their settings.

    Args:
        graph: a compiled graph (a copy is returned, sharing checkpointer, store and channels) or a
            ``StateGraph`` builder (its node specs are edited and the builder itself is returned). Compile a
            builder after wrapping it.
        nodes: settings by node name: ``{"planner": {"output_region": "plan", "pin": ["system", "plan"],
            "budget": 4096, "agent": "planner"}}``. They win over what the node's metadata says already.
        pin: regions pinned for every node that names no pins of its own.
        budget: budget for every node that names none: a number of tokens, `FixedBudget`, `ContextFraction` or
            `PoolShare`.
        config: configuration whose regions may be named; the default one knows the seven regions.

    Raises:
        ConfigError: an unknown node, an unknown setting, or a value that does not hold.
        RegionError: an unknown region.
    """
    known_regions = (config or MemDecayConfig()).region_names
    defaults = _defaults(pin, budget)
    check_regions(defaults, known_regions, "wrap(pin=...)")
    chosen = {name: parse_settings(raw, f"node {name!r}") for name, raw in (nodes or {}).items()}
    for name, settings in chosen.items():
        check_regions(settings, known_regions, f"node {name!r}")
    if isinstance(graph, Pregel):
        return cast(GraphT, _wrap_compiled(graph, chosen, defaults))
    if isinstance(graph, StateGraph):
        _wrap_builder(graph, chosen, defaults)
        return graph
    raise ConfigError(
        where="wrap(graph)",
        rule=f"expected a StateGraph builder or a compiled graph, got {type(graph).__name__}",
        remedy="Pass the builder, or what its compile() returned.",
    )


def _wrap_compiled(
    graph: Pregel[Any, Any, Any, Any], chosen: Mapping[str, NodeSettings], defaults: NodeSettings
) -> Pregel[Any, Any, Any, Any]:
    own = [name for name, node in graph.nodes.items() if name != START and not node.is_error_handler]
    _check_names(chosen, own)
    message_keys = _message_keys(graph.channels)
    replaced = {}
    for name in own:
        node = graph.nodes[name]
        settings = _settings_of(name, node.metadata, chosen, defaults)
        if settings.model_fields_set:
            metadata = {**(node.metadata or {}), METADATA_KEY: settings.as_metadata()}
            bound = wrap_body(node.bound, name, settings, message_keys)
            replaced[name] = node.copy({"metadata": metadata, "bound": bound})
    return graph.copy({"nodes": {**graph.nodes, **replaced}})


def _wrap_builder(
    builder: StateGraph[Any, Any, Any, Any], chosen: Mapping[str, NodeSettings], defaults: NodeSettings
) -> None:
    own = [name for name, spec in builder.nodes.items() if not spec.is_error_handler]
    _check_names(chosen, own)
    plan = {name: _settings_of(name, builder.nodes[name].metadata, chosen, defaults) for name in own}
    for name, settings in plan.items():
        if settings.model_fields_set:
            apply_to_spec(builder, name, settings)


def apply_to_spec(builder: StateGraph[Any, Any, Any, Any], name: str, settings: NodeSettings) -> None:
    """Write settings into one node spec of a builder: its metadata, and its body."""
    spec = builder.nodes[name]
    spec.metadata = {**(spec.metadata or {}), METADATA_KEY: settings.as_metadata()}
    body = cast("Runnable[Any, Any]", spec.runnable)
    spec.runnable = wrap_body(body, name, settings, _message_keys(builder.channels))


def _settings_of(
    name: str,
    metadata: Mapping[str, Any] | None,
    chosen: Mapping[str, NodeSettings],
    defaults: NodeSettings,
) -> NodeSettings:
    """Merge, weakest first: defaults of the call, the node's own metadata, what the call says of the node."""
    raw = (metadata or {}).get(METADATA_KEY)
    own = NodeSettings() if raw is None else parse_settings(raw, f"node {name!r}")
    return merge_settings(merge_settings(defaults, own), chosen.get(name, NodeSettings()))


def _defaults(pin: Sequence[str] | str | None, budget: int | AgentBudget | None) -> NodeSettings:
    given = {"pin": pin, "budget": budget}
    return parse_settings({k: v for k, v in given.items() if v is not None}, "wrap(pin=..., budget=...)")


def _check_names(chosen: Mapping[str, NodeSettings], own: Sequence[str]) -> None:
    for name in chosen:
        if name not in own:
            hint = f"{name!r} is langgraph's own" if name in (START, END) else "Check the spelling"
            raise ConfigError(
                where=f"wrap(nodes={{{name!r}: ...}})",
                rule=f"the graph has no node {name!r}",
                remedy=f"{hint}. Nodes of this graph: {', '.join(map(repr, own)) or 'none yet'}.",
            )


def _message_keys(channels: Mapping[str, Any]) -> frozenset[str]:
    """State keys that ``add_messages`` reduces."""
    return frozenset(
        key
        for key, channel in channels.items()
        if isinstance(channel, BinaryOperatorAggregate) and _is_add_messages(channel.operator)
    )


def _is_add_messages(reducer: object) -> bool:
    if isinstance(reducer, partial):  # add_messages(format=...) is a partial of the plain function
        return getattr(reducer.func, "__module__", "") == add_messages.__module__
    return reducer is add_messages
