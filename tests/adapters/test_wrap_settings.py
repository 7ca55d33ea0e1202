"""Settings of nodes: how they reach the chat model, which of them wins, and which are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from memdecay_adapters.langgraph import MemDecayStateGraph, NodeSettings, wrap
from memdecay_adapters.langgraph.metadata import merge_settings, parse_settings, settings_from_metadata
from memdecay_agents import ContextFraction, FixedBudget, PoolShare
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ConfigError, RegionError
from tests.adapters.small_graphs import PLAN, one_node, probe, regions, sync_node


def test_wrapping_again_replaces_the_settings_and_stamps_once() -> None:
    graph = wrap(wrap(one_node(sync_node).compile(), PLAN), {"planner": {"output_region": "retrieval"}})
    assert regions(graph.invoke({"messages": "hi"})) == [None, "retrieval"]
    assert graph.nodes["planner"].metadata["memdecay"] == {
        "agent": "boss", "pin": ["system", "plan"], "budget_tokens": 4096, "output_region": "retrieval",
    }  # fmt: skip


@pytest.mark.parametrize("is_async", [False, True])
def test_settings_reach_the_chat_model_inside_the_node(is_async: bool) -> None:
    model = probe()

    def body(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    async def abody(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = wrap(one_node(abody if is_async else body).compile(checkpointer=MemorySaver()), PLAN)
    config: RunnableConfig = {"configurable": {"thread_id": "t1"}}
    result = (
        asyncio.run(graph.ainvoke({"messages": "hi"}, config)) if is_async else graph.invoke({"messages": "hi"}, config)
    )
    (metadata,) = model.seen
    assert metadata["langgraph_node"] == "planner"
    assert metadata["thread_id"] == "t1"
    assert settings_from_metadata(metadata) == NodeSettings(
        agent="boss", pin=("system", "plan"), budget=FixedBudget(tokens=4096), output_region="plan"
    )
    assert regions(result) == [None, "plan"]


def test_subgraph_settings_extend_the_outer_ones_and_inherited_messages_are_not_stamped() -> None:
    model = probe()
    inner = MemDecayStateGraph(MessagesState)
    inner.add_node("writer", lambda s: {"messages": [model.invoke(s["messages"])]}, budget=64)
    inner.add_edge(START, "writer")
    outer = StateGraph(MessagesState)
    outer.add_node("planner", inner.compile())
    outer.add_edge(START, "planner")
    for graph in (wrap(outer.compile(), PLAN), wrap(outer, PLAN).compile()):
        assert [name for name, _ in graph.get_subgraphs()] == ["planner"]
        model.seen.clear()
        assert regions(graph.invoke({"messages": "hi"})) == [None, "plan"]
        found = settings_from_metadata(model.seen[0])
        assert (found.agent, found.budget, found.pin) == ("boss", FixedBudget(tokens=64), ("system", "plan"))


def test_metadata_in_the_graph_definition_needs_no_wrap() -> None:
    model = probe()
    builder = StateGraph(MessagesState)
    node_metadata = {"memdecay": {"pin": ["system"], "budget": 128}, "mine": 1}
    builder.add_node("a", lambda s: {"messages": [model.invoke("x")]}, metadata=node_metadata)
    builder.add_edge(START, "a")
    builder.compile().invoke({"messages": "hi"})
    assert settings_from_metadata(model.seen[0]) == NodeSettings(pin=("system",), budget=FixedBudget(tokens=128))
    wrapped = wrap(builder, {"a": {"budget": 256}}, pin=["user"], budget=9)
    assert wrapped.nodes["a"].metadata == {"memdecay": {"pin": ["system"], "budget_tokens": 256}, "mine": 1}


def test_with_config_metadata_beats_node_metadata() -> None:
    model = probe()
    bound = model.with_config(metadata={"memdecay": {"budget": 7}})
    graph = wrap(one_node(lambda s: {"messages": [bound.invoke("x")]}), PLAN).compile()
    graph.invoke({"messages": "hi"})
    assert settings_from_metadata(model.seen[0]) == NodeSettings(
        agent="boss", pin=("system", "plan"), budget=FixedBudget(tokens=7), output_region="plan"
    )


def test_memdecay_state_graph() -> None:
    model = probe()
    builder = MemDecayStateGraph(MessagesState)
    builder.add_node(
        "planner",
        lambda s: {"messages": [model.invoke("x")]},
        pin=["plan"], budget=None, agent="boss", output_region="plan", metadata={"memdecay": {"budget": 5}},
    ).add_edge(START, "planner")  # fmt: skip
    assert regions(builder.compile().invoke({"messages": "hi"})) == [None, "plan"]
    found = settings_from_metadata(model.seen[0])
    assert found.has("budget")
    assert found.budget is None
    with pytest.raises(RegionError, match=r"node 'sync_node'.*'plam'.*plan"):
        builder.add_node(sync_node, output_region="plam")
    assert "sync_node" not in builder.nodes
    custom = MemDecayStateGraph(
        MessagesState, memdecay_config=MemDecayConfig(regions={"notes": {"base_priority": 1.0}})
    )
    custom.add_node(sync_node, output_region="notes")
    assert custom.nodes["sync_node"].metadata == {"memdecay": {"output_region": "notes"}}


@pytest.mark.parametrize(
    ("nodes", "kind", "says"),
    [
        ({"plannner": {"budget": 1}}, ConfigError, ["'plannner'", "'planner'"]),
        ({"__start__": {"budget": 1}}, ConfigError, ["langgraph's own"]),
        ({"planner": {"budgett": 1}}, ConfigError, ["node 'planner'", "'budgett'", "budget_tokens"]),
        ({"planner": {"budget": 0}}, ConfigError, ["node 'planner'", "budget", "greater"]),
        ({"planner": {"budget": True}}, ConfigError, ["node 'planner'", "no budget"]),
        ({"planner": {"budget": "4k"}}, ConfigError, ["node 'planner'", "'4k'"]),
        ({"planner": {"budget": 1, "budget_tokens": 2}}, ConfigError, ["given twice"]),
        ({"planner": {"pin": [1]}}, ConfigError, ["node 'planner'", "pin"]),
        ({"planner": 5}, ConfigError, ["node 'planner'", "mapping"]),
        ({"planner": {"pin": ["sytem"]}}, RegionError, ["node 'planner'", "'sytem'", "system"]),
        ({"planner": {"output_region": "plam"}}, RegionError, ["output_region", "'plam'", "tool_out"]),
    ],
)
def test_bad_settings_are_refused_before_anything_changes(nodes: Any, kind: type[Exception], says: list[str]) -> None:
    builder = one_node(sync_node)
    for graph in (builder, builder.compile()):
        with pytest.raises(kind) as caught:
            wrap(graph, nodes)
        assert all(word in str(caught.value) for word in says), caught.value
    assert builder.nodes["planner"].metadata is None


setting = st.fixed_dictionaries(
    {},
    optional={
        "agent": st.sampled_from(["a", "b"]),
        "pin": st.lists(st.sampled_from(["system", "plan"]), unique=True),
        "budget": st.sampled_from(
            [
                None,
                1,
                9,
                FixedBudget(tokens=512, guaranteed_tokens=256),
                ContextFraction(fraction=0.25, floor_tokens=64),
                PoolShare(weight=2.0, guaranteed_tokens=64),
            ]
        ),
        "output_region": st.just("plan"),
    },
)


@given(outer=setting, inner=setting)
def test_merging_keeps_each_setting_of_the_inner_one(outer: dict[str, Any], inner: dict[str, Any]) -> None:
    a, b = parse_settings(outer, "x"), parse_settings(inner, "x")
    merged = merge_settings(a, b)
    assert merged == parse_settings({**outer, **inner}, "x")
    assert merged.model_fields_set == a.model_fields_set | b.model_fields_set
    assert parse_settings(merged.as_metadata(), "x") == merged
