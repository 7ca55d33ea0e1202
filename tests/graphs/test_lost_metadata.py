"""Threads that a node starts by itself: their calls count for the default agent, and one warning says so."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

from memdecay_adapters.langgraph import LostMetadataWarning, wrap
from memdecay_adapters.langgraph.running import running_node
from tests.graphs.recorder import Recorder


def run_node(node: Callable[[MessagesState], Any]) -> list[warnings.WarningMessage]:
    """Run a wrapped one-node graph, and return its warnings."""
    graph = StateGraph(MessagesState).add_node("fan", node).add_edge(START, "fan").compile()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(wrap(graph, {"fan": {"budget": 64}}).ainvoke({"messages": [HumanMessage("x")]}))
    return [w for w in caught if w.category is LostMetadataWarning]


def in_a_pool(call: Callable[[str], Any]) -> dict[str, Any]:
    with ThreadPoolExecutor(2) as pool:
        return {"messages": [AIMessage(answer.text) for answer in pool.map(call, "abc")]}


def test_a_pool_in_a_node_is_warned_about_once_by_the_nodes_name() -> None:
    model = Recorder(calls=[])
    (warning,) = run_node(lambda state: in_a_pool(model.invoke))
    assert "'fan'" in str(warning.message)
    assert [(call.agent, call.settings.session) for call in model.calls] == [("default", "")] * 3


def test_a_pool_in_an_async_node_too() -> None:
    model = Recorder(calls=[])

    async def fan(state: MessagesState) -> dict[str, Any]:
        with ThreadPoolExecutor(1) as pool:
            answer = await asyncio.get_running_loop().run_in_executor(pool, model.invoke, "a")
        return {"messages": [AIMessage(answer.text)]}

    assert len(run_node(fan)) == 1


def test_threads_that_carry_the_context_or_say_who_they_are() -> None:
    model = Recorder(calls=[])

    def with_context(text: str) -> Any:
        return contexts.pop().run(model.invoke, text)

    contexts: list[contextvars.Context] = []

    def fan(state: MessagesState) -> dict[str, Any]:
        contexts.extend(contextvars.copy_context() for _ in "abc")
        return in_a_pool(with_context)

    assert not run_node(fan)
    assert {call.agent for call in model.calls} == {"fan"}
    assert not run_node(lambda state: in_a_pool(lambda text: model.invoke(text, agent="mine")))
    assert not run_node(lambda state: {"messages": [asyncio.run(asyncio.to_thread(model.invoke, "a"))]})


@pytest.mark.filterwarnings("error::memdecay_adapters.langgraph.LostMetadataWarning")
def test_a_thread_that_was_there_before_the_node_is_none_of_its_business() -> None:
    model, ready, go = Recorder(calls=[]), threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def serve() -> None:
        ready.set()
        go.wait(10)
        try:
            model.invoke("a plain call of another part of the program")
        except BaseException as error:
            failed.append(error)

    server = threading.Thread(target=serve)
    server.start()
    ready.wait(10)
    with running_node("fan"):
        model.invoke("from the main thread")
        go.set()
        server.join()
    assert not failed
    after = threading.Thread(target=model.invoke, args=("no node runs any more",))
    after.start()
    after.join()
    assert len(model.calls) == 3
