"""`wrap` on real LangGraph graphs: they run as before, and the original is never changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send, interrupt

from memdecay_adapters.langgraph import wrap
from memdecay_adapters.langgraph.metadata import settings_from_metadata
from memdecay_agents import FixedBudget
from memdecay_agents.errors import ConfigError
from tests.adapters.small_graphs import PLAN, async_node, one_node, probe, regions, sync_node


def generator_node(state: MessagesState) -> Iterator[dict[str, Any]]:
    yield {"messages": [AIMessage("plan")]}


async def async_generator_node(state: MessagesState) -> AsyncIterator[dict[str, Any]]:
    yield {"messages": [AIMessage("plan")]}


def command_node(state: MessagesState) -> Command[Literal["__end__"]]:
    return Command(update={"messages": [AIMessage("plan")]}, goto=END)


def whole_list_node(state: MessagesState) -> dict[str, Any]:
    return {"messages": [*state["messages"], AIMessage("plan")]}


def tuple_node(state: MessagesState) -> dict[str, Any]:
    return {"messages": [("ai", "plan")]}


def dict_node(state: MessagesState) -> dict[str, Any]:
    return {"messages": {"role": "assistant", "content": "plan"}}


BODIES = [
    sync_node, async_node, generator_node, async_generator_node, command_node, whole_list_node, tuple_node,
    dict_node,
]  # fmt: skip


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "builder"])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_every_kind_of_node_is_stamped_and_otherwise_unchanged(body: Callable[..., Any], compiled: bool) -> None:
    plain = one_node(body).compile()
    wrapped = wrap(plain, PLAN) if compiled else wrap(one_node(body), PLAN).compile()
    runs = [lambda g: asyncio.run(g.ainvoke({"messages": "hi"}))]
    if not asyncio.iscoroutinefunction(body) and body is not async_generator_node:
        runs.append(lambda g: g.invoke({"messages": "hi"}))
    for run in runs:
        before, after = run(plain), run(wrapped)
        assert regions(after) == [None, "plan"]
        assert [(m.type, m.content) for m in after["messages"]] == [(m.type, m.content) for m in before["messages"]]
        assert regions(run(plain)) == [None, None]  # the original graph still stamps nothing


def test_a_compiled_graph_is_copied_never_changed() -> None:
    saver = MemorySaver()
    graph = one_node(sync_node).compile(checkpointer=saver)
    node_before = graph.nodes["planner"]
    bound_before, metadata_before = node_before.bound, node_before.metadata
    wrapped = wrap(graph, PLAN)
    assert wrapped is not graph
    assert type(wrapped) is type(graph)
    assert wrapped.checkpointer is saver
    assert graph.nodes["planner"] is node_before
    assert node_before.bound is bound_before
    assert node_before.metadata is metadata_before
    assert wrapped.get_graph().draw_mermaid() == graph.get_graph().draw_mermaid()


def test_create_agent_as_a_node_and_wrapped_itself() -> None:
    @tool
    def lookup(key: str) -> str:
        """Look a key up."""
        return key

    model = probe()
    agent = create_agent(model, [lookup], name="worker")
    wrapped = wrap(agent, {"model": {"budget": 512, "output_region": "plan"}}, pin="system")
    result = wrapped.invoke({"messages": "hi"})
    assert regions(result) == [None, "plan"]
    found = settings_from_metadata(model.seen[0])
    assert (found.budget, found.pin) == (FixedBudget(tokens=512), ("system",))
    assert model.seen[0]["lc_agent_name"] == "worker"


def test_tool_node_and_send() -> None:
    @tool
    def lookup(key: str) -> str:
        """Look a key up."""
        return f"value of {key}"

    def fan_out(state: MessagesState) -> list[Send]:
        return [Send("planner", {"messages": [*state["messages"], HumanMessage(c)]}) for c in "ab"]

    call = AIMessage("", tool_calls=[{"name": "lookup", "args": {"key": "k"}, "id": "1"}])
    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode([lookup]))
    builder.add_node("planner", sync_node)
    builder.add_edge(START, "tools")
    builder.add_conditional_edges("tools", fan_out, ["planner"])
    graph = wrap(builder.compile(), {**PLAN, "tools": {"output_region": "retrieval"}})
    result = graph.invoke({"messages": [HumanMessage("hi"), call]})
    assert isinstance(result["messages"][2], ToolMessage)
    assert regions(result) == [None, None, "retrieval", "plan", "plan"]


def test_interrupt_and_resume_through_a_wrapped_node() -> None:
    def body(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(interrupt("name?"))]}

    graph = wrap(one_node(body).compile(checkpointer=MemorySaver()), PLAN)
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    assert "__interrupt__" in graph.invoke({"messages": "hi"}, config)
    result = graph.invoke(Command(resume="Ada"), config)
    assert [m.content for m in result["messages"]] == ["hi", "Ada"]
    assert regions(graph.get_state(config).values) == [None, "plan"]  # the stamp survives the checkpoint


def test_injected_arguments_and_destinations_survive() -> None:
    def body(state: MessagesState, config: RunnableConfig) -> Command[Literal["other"]]:
        return Command(goto="other", update={"messages": [AIMessage(config["configurable"]["thread_id"])]})

    builder = one_node(body)
    builder.add_node("other", sync_node)
    graph = wrap(builder, PLAN).compile()
    result = graph.invoke({"messages": "hi"}, {"configurable": {"thread_id": "t9"}})
    assert [m.content for m in result["messages"]] == ["hi", "t9", "plan"]
    assert regions(result) == [None, "plan", None]


def test_a_timeout_on_a_sync_node_is_still_refused() -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("planner", sync_node, timeout=5.0)
    builder.add_edge(START, "planner")
    with pytest.raises(ValueError, match="planner"):
        builder.compile()
    with pytest.raises(ValueError, match="planner"):
        wrap(builder, PLAN).compile()
    fine = StateGraph(MessagesState)
    fine.add_node("planner", async_node, timeout=5.0)
    fine.add_edge(START, "planner")
    assert regions(asyncio.run(wrap(fine, PLAN).compile().ainvoke({"messages": "hi"}))) == [None, "plan"]


def test_only_graphs_can_be_wrapped() -> None:
    with pytest.raises(ConfigError, match="StateGraph"):
        wrap(sync_node, {})  # type: ignore[type-var]
