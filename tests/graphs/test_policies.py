"""Retry, cache and timeout policies, deferred nodes, error handlers and runtime context of wrapped nodes."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.cache.memory import InMemoryCache
from langgraph.errors import NodeTimeoutError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import CachePolicy, RetryPolicy

from memdecay_adapters import wrap
from tests.graphs.compare import regions, same
from tests.graphs.recorder import Recorder

PLAN = {"planner": {"budget": 512, "output_region": "plan", "agent": "boss"}}
HELLO = {"messages": [HumanMessage("hello")]}


def one(node: Callable[..., Any], **policies: Any) -> Any:
    return StateGraph(MessagesState).add_node("planner", node, **policies).add_edge(START, "planner")


def invoke(graph: Any) -> Any:
    return graph.invoke(HELLO)


@pytest.mark.tried("retry policies")
def test_retries() -> None:
    def build(model: Recorder) -> Any:
        tries = iter((True, True, False))

        def flaky(state: MessagesState) -> dict[str, Any]:
            answer = model.invoke(state["messages"])
            if next(tries):
                raise ConnectionError("again")
            return {"messages": [AIMessage(answer.text)]}

        return one(flaky, retry_policy=RetryPolicy(initial_interval=0.001, jitter=False, max_attempts=3)).compile()

    done = same(build, invoke, PLAN)
    assert [(call.agent, call.budget_tokens) for call in done.calls] == [("boss", 512)] * 3
    assert regions(done.result) == [None, "plan"]


@pytest.mark.tried("cache policies, clear_cache")
def test_cached_writes() -> None:
    def build(model: Recorder) -> Any:
        def planner(state: MessagesState) -> dict[str, Any]:
            return {"messages": [AIMessage(model.invoke(state["messages"]).text)]}

        policy = CachePolicy(key_func=lambda state: state["messages"][0].text)
        return one(planner, cache_policy=policy).compile(cache=InMemoryCache())

    def thrice(graph: Any) -> Any:
        first, second = invoke(graph), invoke(graph)
        graph.clear_cache()
        return [first, second, invoke(graph)]

    done = same(build, thrice, PLAN)
    assert len(done.calls) == 2
    assert [regions(result) for result in done.result] == [[None, "plan"]] * 3  # a cached write is stamped too


def test_graphs_that_share_a_cache_do_not_read_each_others_writes() -> None:
    cache: Any = InMemoryCache()

    def first(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("first")]}

    def second(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("second")]}

    policy = CachePolicy(key_func=lambda state: state["messages"][0].text)
    plain = one(first, cache_policy=policy).compile(cache=cache)
    graphs = [
        plain,
        wrap(plain, PLAN),
        wrap(plain, {"planner": {"output_region": "retrieval"}}),
        wrap(one(second, cache_policy=policy).compile(cache=cache), PLAN),
    ]
    for _ in range(2):
        results = [invoke(graph) for graph in graphs]
        assert [r["messages"][-1].text for r in results] == ["first", "first", "first", "second"]
        assert [regions(r)[-1] for r in results] == [None, "plan", "retrieval", "plan"]


@pytest.mark.tried("timeout policies")
def test_timeouts() -> None:
    def build(model: Recorder) -> Any:
        async def planner(state: MessagesState) -> dict[str, Any]:
            answer = await model.ainvoke(state["messages"])
            if "wait" in answer.text:
                await asyncio.Event().wait()
            return {"messages": [AIMessage(answer.text)]}

        return one(planner, timeout=0.2).compile()

    def run(graph: Any) -> Any:
        fine = asyncio.run(graph.ainvoke(HELLO))
        with pytest.raises(NodeTimeoutError):
            asyncio.run(graph.ainvoke({"messages": [HumanMessage("wait")]}))
        return fine

    done = same(build, run, PLAN)
    assert done.by_agent() == {"boss": {512}}
    assert regions(done.result) == [None, "plan"]


@pytest.mark.tried("deferred nodes, error handlers, runtime context")
def test_error_handlers() -> None:
    def build(model: Recorder) -> Any:
        def broken(state: MessagesState) -> dict[str, Any]:
            raise ValueError(model.invoke(state["messages"]).text)

        def handler(state: MessagesState) -> dict[str, Any]:
            return {"messages": [AIMessage("handled")]}

        return one(broken, error_handler=handler).compile()

    done = same(build, invoke, PLAN)
    assert [m.text for m in done.result["messages"]] == ["hello", "handled"]
    assert done.by_agent() == {"boss": {512}}


class Gathered(TypedDict):
    items: Annotated[list[Any], operator.add]


@pytest.mark.tried("deferred nodes, error handlers, runtime context")
def test_deferred_nodes_run_last() -> None:
    def build(model: Recorder) -> Any:
        builder = StateGraph(Gathered)
        builder.add_node("late", lambda s: {"items": [model.invoke(f"{len(s['items'])} items").text]}, defer=True)
        for name in "abc":
            builder.add_node(name, lambda s, name=name: {"items": [name]})
        builder.add_edge(START, "a").add_edge(START, "b").add_edge("b", "c").add_edge("a", "late").add_edge("c", "late")
        return builder.compile()

    done = same(build, lambda graph: graph.invoke({"items": []}), {"late": {"budget": 64}}, budget=128)
    assert done.result["items"][-1] == "3 items [1]"
    assert done.by_agent() == {"late": {64}}


@dataclass
class Context:
    user: str


@pytest.mark.tried("deferred nodes, error handlers, runtime context")
def test_runtime_context_is_injected() -> None:
    def build(model: Recorder) -> Any:
        def planner(state: MessagesState, runtime: Runtime[Context]) -> dict[str, Any]:
            return {"messages": [AIMessage(model.invoke(runtime.context.user).text)]}

        builder = StateGraph(MessagesState, context_schema=Context)
        return builder.add_node("planner", planner).add_edge(START, "planner").compile()

    done = same(build, lambda graph: graph.invoke(HELLO, context=Context("Ada")), PLAN)
    assert done.result["messages"][-1].text == "Ada [1]"
    assert regions(done.result) == [None, "plan"]
