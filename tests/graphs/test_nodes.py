"""Nodes of every kind: the model sees the node's settings, new messages are stamped, the results stay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send

from memdecay_adapters import MemDecayStateGraph, wrap
from tests.graphs.compare import Run, bare, regions, same
from tests.graphs.recorder import Recorder

SETTINGS = {"planner": {"agent": "boss", "budget": 4096, "pin": ["system", "plan"], "output_region": "plan"}}


class Object:
    """A node that is a callable object."""

    def __init__(self, model: Recorder) -> None:
        self.model = model

    def __call__(self, state: MessagesState) -> dict[str, Any]:
        return said(self.model.invoke(state["messages"]))


def said(answer: AIMessage) -> dict[str, Any]:
    """A message of the node's own, so that the stamp is the node's."""
    return {"messages": [AIMessage(answer.text)]}


def sync_function(model: Recorder) -> Any:
    return lambda state: said(model.invoke(state["messages"]))


def async_function(model: Recorder) -> Any:
    async def node(state: MessagesState) -> dict[str, Any]:
        return said(await model.ainvoke(state["messages"]))

    return node


def generator(model: Recorder) -> Any:
    def node(state: MessagesState) -> Iterator[dict[str, Any]]:
        yield said(model.invoke(state["messages"]))

    return node


def async_generator(model: Recorder) -> Any:
    async def node(state: MessagesState) -> AsyncIterator[dict[str, Any]]:
        yield said(await model.ainvoke(state["messages"]))

    return node


def streaming_function(model: Recorder) -> Any:
    def node(state: MessagesState) -> dict[str, Any]:
        return said(AIMessage("".join(chunk.text for chunk in model.stream(state["messages"]))))

    return node


def with_config_parameter(model: Recorder) -> Any:
    def node(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        return said(model.invoke(state["messages"], config))

    return node


def partial_function(model: Recorder) -> Any:
    def node(model: Recorder, state: MessagesState) -> dict[str, Any]:
        return said(model.invoke(state["messages"]))

    return partial(node, model)


def chain(model: Recorder) -> Any:
    prompt = ChatPromptTemplate.from_messages([("system", "Be short."), MessagesPlaceholder("messages")])
    return prompt | model | (lambda answer: said(answer))


def both_ways(model: Recorder) -> Any:
    return RunnableLambda(sync_function(model), async_function(model))


def batch_in_a_node(model: Recorder) -> Any:
    return lambda state: said(model.batch([state["messages"], state["messages"]])[1])


def command(model: Recorder) -> Any:
    def node(state: MessagesState) -> Command[Literal["other"]]:
        return Command(update=said(model.invoke(state["messages"])), goto="other")

    return node


KINDS = [
    sync_function, async_function, generator, async_generator, streaming_function, with_config_parameter,
    partial_function, Object, chain, both_ways, batch_in_a_node, command,
]  # fmt: skip
ONLY_ASYNC = [async_function, async_generator]


def two_nodes(kind: Callable[[Recorder], Any]) -> Callable[[Recorder], StateGraph[Any, Any, Any, Any]]:
    def build(model: Recorder) -> StateGraph[Any, Any, Any, Any]:
        builder = StateGraph(MessagesState)
        builder.add_node("planner", kind(model))
        builder.add_node("other", lambda state: {"messages": [AIMessage("done")]})
        builder.add_edge(START, "planner")
        if kind is not command:
            builder.add_edge("planner", "other")
        return builder

    return build


def invoke(graph: Any) -> Any:
    return graph.invoke({"messages": [HumanMessage("hello")]})


def ainvoke(graph: Any) -> Any:
    return asyncio.run(graph.ainvoke({"messages": [HumanMessage("hello")]}))


def check_planner(run: Run) -> None:
    assert run.by_agent() == {"boss": {4096}}
    assert {call.settings.pins for call in run.calls} == {("system", "plan")}
    assert regions(run.result) == [None, "plan", None]


@pytest.mark.tried("nodes: sync, async, generators, Command(goto)")
@pytest.mark.parametrize(
    ("kind", "run"),
    [(kind, run) for kind in KINDS for run in (invoke, ainvoke) if run is ainvoke or kind not in ONLY_ASYNC],
    ids=lambda part: part.__name__,
)
def test_kinds_of_nodes(kind: Callable[[Recorder], Any], run: Callable[[Any], Any]) -> None:
    build = two_nodes(kind)
    check_planner(same(lambda model: build(model).compile(), run, SETTINGS))
    model = Recorder(calls=[])  # the same on the builder
    result = run(wrap(build(model), SETTINGS).compile())
    check_planner(Run(result, model.calls, None))


@pytest.mark.tried("wrap() on builders, compiled graphs and MemDecayStateGraph")
@pytest.mark.parametrize("kind", [sync_function, async_generator, chain], ids=lambda kind: kind.__name__)
def test_the_graph_definition_says_the_same_as_wrap(kind: Callable[[Recorder], Any]) -> None:
    model = Recorder(calls=[])
    builder = MemDecayStateGraph(MessagesState)
    builder.add_node("planner", kind(model), **SETTINGS["planner"])
    builder.add_node("other", lambda state: {"messages": [AIMessage("done")]})
    builder.add_edge(START, "planner").add_edge("planner", "other")
    check_planner(Run(ainvoke(builder.compile()), model.calls, None))


@pytest.mark.tried("Send (parallel branches) and ToolNode")
@pytest.mark.parametrize("run", [invoke, ainvoke])
def test_send_and_tools(run: Callable[[Any], Any]) -> None:
    @tool
    def lookup(key: str) -> str:
        """Look a key up."""
        return f"value of {key}"

    def build(model: Recorder) -> Any:
        def call(state: MessagesState) -> dict[str, Any]:
            asked = [{"name": "lookup", "args": {"key": key}, "id": key} for key in ("k1", "k2")]
            return {"messages": [AIMessage("", tool_calls=asked)]}

        def fan(state: MessagesState) -> list[Send]:
            return [Send("worker", {"messages": [HumanMessage(topic)]}) for topic in ("a", "b", "c")]

        builder = StateGraph(MessagesState)
        builder.add_node("call", call)
        builder.add_node("tools", ToolNode([lookup]))
        builder.add_node("worker", sync_function(model))
        builder.add_edge(START, "call").add_edge("call", "tools").add_conditional_edges("tools", fan, ["worker"])
        return builder.compile()

    nodes = {"worker": {"budget": 512, "output_region": "plan"}, "tools": {"output_region": "retrieval"}}
    done = same(build, run, nodes, budget=2048)
    assert done.by_agent() == {"worker": {512}}
    assert regions(done.result) == [None, None, "retrieval", "retrieval", "plan", "plan", "plan"]


@pytest.mark.tried("subgraphs, nested twice")
@pytest.mark.parametrize("run", [invoke, ainvoke])
def test_subgraphs(run: Callable[[Any], Any]) -> None:
    def build(model: Recorder) -> Any:
        inner = MemDecayStateGraph(MessagesState)
        inner.add_node("draft", sync_function(model), output_region="plan", budget=64)
        inner.add_node("check", sync_function(model))
        inner.add_edge(START, "draft").add_edge("draft", "check")
        middle = StateGraph(MessagesState).add_node("team", inner.compile()).add_edge(START, "team").compile()

        def called(state: MessagesState) -> dict[str, Any]:  # a subgraph that a node calls by itself
            return {"messages": middle.invoke({"messages": state["messages"][:1]})["messages"][-1:]}

        outer = StateGraph(MessagesState).add_node("office", middle).add_node("called", called)
        return outer.add_edge(START, "office").add_edge("office", "called").compile()

    nodes = {"office": {"budget": 1024, "pin": "system"}, "called": {"output_region": "retrieval"}}
    done = same(build, run, nodes)
    assert done.by_agent() == {
        "office|team|draft": {64}, "office|team|check": {1024}, "called|team|draft": {64}, "called|team|check": {None},
    }  # fmt: skip
    assert all((call.settings.pins == ("system",)) == call.agent.startswith("office") for call in done.calls)
    assert regions(done.result) == [None, "plan", None, "retrieval"]


node_settings = st.fixed_dictionaries(
    {},
    optional={
        "agent": st.sampled_from(["boss", "clerk"]),
        "budget": st.one_of(st.none(), st.integers(1, 9999)),
        "output_region": st.sampled_from(["plan", "retrieval"]),
    },
)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), size=st.integers(1, 6))
def test_random_graphs(data: st.DataObject, size: int) -> None:
    """Trees of random nodes with random settings, several of them running at once."""
    kinds = [data.draw(st.sampled_from([k for k in KINDS if k is not command])) for _ in range(size)]
    parents = [data.draw(st.integers(0, i - 1)) if i else -1 for i in range(size)]
    chosen = {f"n{i}": said for i in range(size) if (said := data.draw(node_settings))}

    def build(model: Recorder) -> Any:
        builder = StateGraph(MessagesState)
        for i, kind in enumerate(kinds):
            builder.add_node(f"n{i}", kind(model))
            builder.add_edge(f"n{parents[i]}" if i else START, f"n{i}")
        return builder.compile()

    done = same(build, ainvoke, chosen)
    expected: dict[str, set[int | None]] = {}
    for i in range(size):
        says = chosen.get(f"n{i}", {})
        expected.setdefault(says.get("agent", f"n{i}"), set()).add(says.get("budget"))
    assert done.by_agent() == expected
    stamped = sorted(region for region in regions(done.result) if region)
    assert stamped == sorted(says["output_region"] for says in chosen.values() if "output_region" in says)


def test_results_are_compared_whole() -> None:
    """The comparison that the other tests rest on sees a change of a text, a call, a name or an artifact."""
    one = AIMessage("a", tool_calls=[{"name": "t", "args": {"x": 1}, "id": "1"}])
    assert bare([one]) == bare([one.model_copy(update={"id": "other", "additional_kwargs": {"memdecay": [{}]}})])
    for change in ({"content": "b"}, {"tool_calls": []}, {"name": "n"}, {"additional_kwargs": {"k": 1}}):
        assert bare([one]) != bare([one.model_copy(update=change)])


def test_destinations_are_drawn_as_before() -> None:
    plain = two_nodes(command)(Recorder()).compile()
    assert "planner -.-> other" in plain.get_graph().draw_mermaid()
    assert wrap(plain, SETTINGS).get_graph().draw_mermaid() == plain.get_graph().draw_mermaid()
