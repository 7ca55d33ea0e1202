"""Every stream mode of a wrapped graph yields what the plain graph yields."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, get_args

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import StreamMode

from tests.graphs.compare import bare, regions, same
from tests.graphs.recorder import Recorder

MODES = sorted(get_args(StreamMode))
NODES = {"team": {"budget": 512, "output_region": "plan"}, "answer": {"budget": 256, "agent": "clerk"}}
THREAD = {"configurable": {"thread_id": "t"}}
HELLO = {"messages": [HumanMessage("hello there")]}
OF_ONE_RUN = frozenset({
    "id", "timestamp", "created_at", "run_id", "parent_ids", "config", "parent_config", "checkpoint", "checkpoint_ns",
    "langgraph_checkpoint_ns", "langgraph_path", "thread_id", "ls_run_id", "ns", "parents",
})  # fmt: skip
"""Keys whose values are ids or times of one run."""


def build(model: Recorder) -> Any:
    def draft(state: MessagesState) -> dict[str, Any]:
        get_stream_writer()({"progress": 1})
        return {"messages": [model.invoke(state["messages"])]}

    async def adraft(state: MessagesState) -> dict[str, Any]:
        get_stream_writer()({"progress": 1})
        return {"messages": [await model.ainvoke(state["messages"])]}

    inner = StateGraph(MessagesState).add_node("draft", RunnableLambda(draft, adraft)).add_edge(START, "draft")
    outer = StateGraph(MessagesState)
    outer.add_node("team", inner.compile())
    outer.add_node("answer", RunnableLambda(draft, adraft))
    outer.add_edge(START, "team").add_edge("team", "answer")
    return outer.compile(checkpointer=InMemorySaver())


def comparable(value: Any) -> Any:
    """An event without what belongs to one run: ids, times, and our own metadata."""
    if isinstance(value, BaseMessage):
        return bare(value)
    if isinstance(value, Mapping):
        left = {k: v for k, v in value.items() if k not in OF_ONE_RUN | {"memdecay", "memdecay_outer"}}
        return {k: comparable(v) for k, v in left.items() if k != "metadata" or set(v) - {"memdecay", "memdecay_outer"}}
    if isinstance(value, (list, tuple)):
        if isinstance(value, tuple) and value and all(isinstance(v, str) and ":" in v for v in value):
            return [part.split(":")[0] for part in value]  # a namespace of subgraphs
        return [comparable(item) for item in value]
    return bare(value)


def sync_stream(mode: Any, subgraphs: bool) -> Callable[[Any], Any]:
    return lambda graph: [comparable(e) for e in graph.stream(HELLO, THREAD, stream_mode=mode, subgraphs=subgraphs)]


def async_stream(mode: Any, subgraphs: bool) -> Callable[[Any], Any]:
    async def run(graph: Any) -> Any:
        events = graph.astream(HELLO, THREAD, stream_mode=mode, subgraphs=subgraphs)
        return [comparable(event) async for event in events]

    return lambda graph: asyncio.run(run(graph))


@pytest.mark.tried(f"stream modes: {', '.join(MODES)}; several at once; subgraphs=True")
@pytest.mark.parametrize("subgraphs", [False, True], ids=["", "subgraphs"])
@pytest.mark.parametrize("way", [sync_stream, async_stream])
@pytest.mark.parametrize("mode", [*MODES, MODES], ids=str)
def test_stream_modes(mode: Any, way: Any, subgraphs: bool) -> None:
    done = same(build, way(mode, subgraphs), NODES)
    assert done.result, "nothing was streamed"
    assert done.by_agent() == {"team|draft": {512}, "clerk": {256}}


def chain_node(model: Recorder) -> Any:
    """A chain and a generator as nodes: plain langgraph streams through both of them."""

    async def repeat(state: MessagesState) -> AsyncIterator[dict[str, Any]]:
        for text in ("one", "two"):
            yield {"messages": [AIMessage(text, id=text)]}

    chain = RunnableLambda(lambda state: state["messages"]) | model | (lambda answer: {"messages": [answer]})
    builder = StateGraph(MessagesState).add_node("team", chain).add_node("answer", repeat)
    return builder.add_edge(START, "team").add_edge("team", "answer").compile(checkpointer=InMemorySaver())


@pytest.mark.tried("astream_events")
@pytest.mark.parametrize("build", [build, chain_node], ids=["functions", "chain"])
def test_events(build: Callable[[Recorder], Any]) -> None:
    async def run(graph: Any) -> Any:
        events = [e async for e in graph.astream_events(HELLO, THREAD, version="v2")]
        # langgraph takes a chain apart that is a node; wrapped, it is one more run with the same steps inside
        return [(e["event"], e["name"], comparable(e["data"])) for e in events if e["name"] != "RunnableSequence"]

    nodes = {**NODES, "answer": {"output_region": "retrieval"}}
    done = same(build, lambda graph: asyncio.run(run(graph)), nodes)
    assert {"on_chat_model_stream", "on_chain_end"} <= {event for event, _, _ in done.result}
    assert regions(done.graph.get_state(THREAD).values) == [None, "plan", "retrieval"]


def test_streamed_tokens_carry_the_tag_once_and_the_state_the_same_tag() -> None:
    def run(graph: Any) -> Any:
        parts = graph.stream(HELLO, THREAD, stream_mode="messages", subgraphs=True)
        return [message for _, (message, _) in parts if isinstance(message, AIMessageChunk)]

    done = same(build, run, NODES)
    assert sum("memdecay" in chunk.additional_kwargs for chunk in done.result) == 1
    assert regions(done.graph.get_state(THREAD).values) == [None, "plan", None]
