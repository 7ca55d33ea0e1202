"""Prebuilt agents: create_react_agent, create_agent, a supervisor's team and a swarm."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent
from langgraph.warnings import LangGraphDeprecatedSinceV10
from langgraph_supervisor import create_supervisor
from langgraph_swarm import create_handoff_tool, create_swarm
from pydantic import BaseModel

from tests.graphs.compare import regions, same
from tests.graphs.recorder import Recorder


@tool
def lookup(key: str) -> str:
    """Look a key up."""
    return f"value of {key}"


def calls_tool(name: str, **args: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"call-{name}"}])


def looks_up_once(messages: Sequence[BaseMessage], tools: Sequence[str]) -> str | AIMessage:
    if "lookup" in tools and not any(isinstance(m, ToolMessage) for m in messages):
        return calls_tool("lookup", key="k")
    return f"answer to {messages[-1].text}"


def react(model: Recorder, tools: Sequence[Any], **keywords: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LangGraphDeprecatedSinceV10)
        return create_react_agent(model, tools, **keywords)


def invoke(graph: Any) -> Any:
    return graph.invoke({"messages": [HumanMessage("hello")]}, {"configurable": {"thread_id": "t"}})


def ainvoke(graph: Any) -> Any:
    return asyncio.run(graph.ainvoke({"messages": [HumanMessage("hello")]}, {"configurable": {"thread_id": "t"}}))


both_ways = pytest.mark.parametrize("run", [invoke, ainvoke])


@pytest.mark.tried("create_react_agent", "langgraph-prebuilt")
@both_ways
def test_create_react_agent(run: Callable[[Any], Any]) -> None:
    done = same(
        lambda model: react(model, [lookup], prompt="Be short.", checkpointer=InMemorySaver()),
        run,
        {"agent": {"budget": 512, "output_region": "plan"}, "tools": {"output_region": "retrieval"}},
        script=looks_up_once,
    )
    assert done.by_agent() == {"agent": {512}}
    assert regions(done.result) == [None, "plan", "retrieval", "plan"]
    assert [call.regions for call in done.calls] == [
        (("system",), ("user",)),
        (("system",), ("user",), (), ("retrieval",)),  # the call itself has no text
    ]
    assert {call.settings.session for call in done.calls} == {"t"}


class Verdict(BaseModel):
    """An answer in parts."""

    text: str


@pytest.mark.tried("create_agent, also named, as a node and with a response format", "langchain")
@both_ways
def test_create_agent(run: Callable[[Any], Any]) -> None:
    def build(model: Recorder) -> Any:
        return create_agent(model, [lookup], system_prompt="Be short.", name="worker", checkpointer=InMemorySaver())

    done = same(build, run, {"model": {"budget": 512, "output_region": "plan"}}, pin="system", script=looks_up_once)
    assert done.by_agent() == {"worker": {512}}
    assert all(call.settings.pins == ("system",) for call in done.calls)
    assert regions(done.result) == [None, "plan", None, "plan"]


@pytest.mark.tried("create_agent, also named, as a node and with a response format", "langchain")
def test_create_agent_as_a_node_with_a_response_format() -> None:
    from langchain.agents.structured_output import ToolStrategy
    from langgraph.graph import START, MessagesState, StateGraph

    def build(model: Recorder) -> Any:
        agent = create_agent(model, [lookup], response_format=ToolStrategy(Verdict), name="worker")
        return StateGraph(MessagesState).add_node("desk", agent).add_edge(START, "desk").compile()

    def script(messages: Sequence[BaseMessage], tools: Sequence[str]) -> str | AIMessage:
        done = any(isinstance(m, ToolMessage) for m in messages)
        return calls_tool("Verdict", text="fine") if done else calls_tool("lookup", key="k")

    done = same(build, ainvoke, {"desk": {"budget": 256, "output_region": "plan"}}, script=script)
    assert done.by_agent() == {"worker": {256}}
    assert {call.keywords["tool_choice"] for call in done.calls} == {"any"}
    assert regions(done.result)[0] is None
    written = zip(done.result["messages"], regions(done.result), strict=True)
    assert {region for message, region in written if isinstance(message, AIMessage)} == {"plan"}


def hands_over(messages: Sequence[BaseMessage], tools: Sequence[str]) -> str | AIMessage:
    """A supervisor that asks each worker once, in order; workers look something up and answer."""
    transfers = [name for name in tools if name.startswith("transfer_to_")]
    if not transfers:
        since = next((i for i, m in reversed(list(enumerate(messages))) if m.name == "supervisor"), 0)
        looked = any(isinstance(m, ToolMessage) and m.name == "lookup" for m in messages[since:])
        return calls_tool("lookup", key="k") if "lookup" in tools and not looked else f"found {len(messages)}"
    went = {m.name for m in messages if isinstance(m, ToolMessage)}
    todo = [name for name in transfers if name not in went]
    return calls_tool(todo[0]) if todo else "all done"


@pytest.mark.tried("supervisor with hand-offs", "langgraph-supervisor")
@pytest.mark.parametrize("make", [react, create_agent], ids=["react", "create_agent"])
@pytest.mark.parametrize("output_mode", ["last_message", "full_history"])
def test_supervisor(make: Any, output_mode: Any) -> None:
    def build(model: Recorder) -> Any:
        workers = [make(model, [lookup], name=name) for name in ("researcher", "writer")]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LangGraphDeprecatedSinceV10)
            team = create_supervisor(
                workers, model=model, prompt="Delegate.", output_mode=output_mode, add_handoff_messages=True
            )
        return team.compile(checkpointer=InMemorySaver())

    nodes = {"researcher": {"budget": 512, "output_region": "retrieval"}, "writer": {"budget": 256}}
    done = same(build, ainvoke, nodes, budget=2048, script=hands_over)
    budgets = done.by_agent()
    assert {name.split("|")[0]: tokens for name, tokens in budgets.items()} == {
        "supervisor": {2048}, "researcher": {512}, "writer": {256},
    }  # fmt: skip
    assert {call.settings.session for call in done.calls} == {"t"}  # one thread: a session for each agent of it
    last = max((c for c in done.calls if c.agent.startswith("supervisor")), key=lambda c: len(c.regions))
    flat = [region for message in last.regions for region in message]
    assert flat[0] == "system"
    assert {"user", "retrieval", "tool_in", "tool_out"} <= set(flat)  # a hand-off goes in, its way back comes out


@pytest.mark.tried("swarm with hand-offs", "langgraph-swarm")
@both_ways
def test_swarm(run: Callable[[Any], Any]) -> None:
    def script(messages: Sequence[BaseMessage], tools: Sequence[str]) -> str | AIMessage:
        went = {m.name for m in messages if isinstance(m, ToolMessage)}
        if "transfer_to_bob" in tools and "transfer_to_bob" not in went:
            return calls_tool("transfer_to_bob")
        return f"{len(messages)} messages so far"

    def build(model: Recorder) -> Any:
        alice = create_agent(model, [create_handoff_tool(agent_name="bob")], name="alice")
        bob = create_agent(model, [create_handoff_tool(agent_name="alice"), lookup], name="bob")
        return create_swarm([alice, bob], default_active_agent="alice").compile(checkpointer=InMemorySaver())

    def twice(graph: Any) -> Any:
        return [run(graph), run(graph)]

    done = same(build, twice, {"alice": {"budget": 128}, "bob": {"budget": 64, "output_region": "plan"}}, script=script)
    assert done.by_agent() == {"alice": {128}, "bob": {64}}
    assert [call.agent for call in done.calls] == ["alice", "bob", "bob"]  # the second turn begins with bob
    assert done.result[1]["active_agent"] == "bob"
    assert regions(done.result[1])[-1] == "plan"
