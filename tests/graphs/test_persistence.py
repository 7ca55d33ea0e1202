"""Checkpointers and stores: turns, interrupts, resuming, time travel and edited states, in memory and in databases."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore
from langgraph.types import Command, interrupt

from tests.graphs import postgres
from tests.graphs.compare import bare, regions, same
from tests.graphs.recorder import Recorder

NODES = {
    "plan": {"budget": 512, "output_region": "plan", "agent": "planner"},
    "answer": {"budget": 256, "pin": ["system", "plan"]},
}


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[str]:
    if reason := postgres.reason_to_skip():
        pytest.skip(reason)
    with postgres.server() as connection:
        yield connection


def build(model: Recorder) -> Any:
    def plan(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(model.invoke(state["messages"]).text)]}

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [HumanMessage(f"go: {interrupt('may I?')}")]}

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("plan", plan).add_node("ask", ask).add_node("answer", answer)
    builder.add_edge(START, "plan").add_edge("plan", "ask").add_edge("ask", "answer")
    return builder.compile()


async def conversation(call: Callable[..., Awaitable[Any]]) -> list[Any]:
    """Two turns with an interrupt in each, a look at the history, a branch from the past, and an edited state."""
    config = {"configurable": {"thread_id": uuid.uuid4().hex}}
    seen = []
    for turn in ("first", "second"):
        seen.append(await call("invoke", {"messages": [HumanMessage(turn)]}, config))
        waiting = await call("get_state", config)
        seen += [waiting.next, waiting.interrupts]
        seen.append(await call("invoke", Command(resume=f"yes, {turn}"), config))
    history = await call("get_state_history", config)
    seen.append([(snapshot.next, snapshot.values) for snapshot in history])
    past = next(s for s in history if s.next == ("answer",) and len(s.values["messages"]) == 3)
    seen.append(await call("invoke", None, past.config))
    edited = await call("update_state", config, {"messages": [HumanMessage("edited")]}, as_node="ask")
    seen.append(await call("invoke", None, edited))
    return seen


def check(run: Callable[[Any], Any]) -> None:
    done = same(build, run, NODES)
    assert done.by_agent() == {"planner": {512}, "answer": {256}}
    assert len({call.settings.session for call in done.calls}) == 1
    first, waits, asked, second = done.result[:4]
    assert first["__interrupt__"]
    assert waits == ("ask",)
    assert asked[0].value == "may I?"
    assert regions(second) == [None, "plan", None, None]
    assert regions(done.result[-1])[:4] == [None, "plan", None, None]  # stamps came back from the checkpoint
    assert done.result[-1]["messages"][-2].text == "edited"


async def on(graph: Any, name: str, *args: Any, sync: bool, **keywords: Any) -> Any:
    """Call a graph's method, or its async twin."""
    if name == "get_state_history":
        return list(graph.get_state_history(*args)) if sync else [s async for s in graph.aget_state_history(*args)]
    return getattr(graph, name)(*args, **keywords) if sync else await getattr(graph, f"a{name}")(*args, **keywords)


def conversing(open_saver: Callable[[], Any], *, sync: bool) -> Callable[[Any], Any]:
    async def run(graph: Any) -> Any:
        async def call(name: str, *args: Any, **keywords: Any) -> Any:
            return await on(ready, name, *args, sync=sync, **keywords)

        if sync:
            with open_saver() as saver:
                ready = graph.copy({"checkpointer": saver})
                return await conversation(call)
        async with open_saver() as saver:
            ready = graph.copy({"checkpointer": saver})
            return await conversation(call)

    return lambda graph: asyncio.run(run(graph))


@asynccontextmanager
async def set_up(opened: Any) -> AsyncIterator[Any]:
    async with opened as saver:
        await saver.setup()
        yield saver


@pytest.mark.tried("memory checkpointer: interrupts, resume, time travel, edited states", "langgraph-checkpoint")
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_memory(sync: bool) -> None:
    check(conversing(InMemorySaver, sync=sync))


@pytest.mark.tried("SQLite checkpointer, the same", "langgraph-checkpoint-sqlite")
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_sqlite(sync: bool, tmp_path: Path) -> None:
    saver = SqliteSaver if sync else AsyncSqliteSaver
    check(conversing(lambda: saver.from_conn_string(str(tmp_path / "threads.sqlite")), sync=sync))


@pytest.mark.tried("PostgreSQL checkpointer, the same", "langgraph-checkpoint-postgres", "psycopg")
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_postgres(sync: bool, postgres_server: str) -> None:
    if sync:
        with PostgresSaver.from_conn_string(postgres_server) as saver:
            saver.setup()
        check(conversing(lambda: PostgresSaver.from_conn_string(postgres_server), sync=True))
    else:
        check(conversing(lambda: set_up(AsyncPostgresSaver.from_conn_string(postgres_server)), sync=False))


def remembering(model: Recorder, store: BaseStore) -> Any:
    def remember(state: MessagesState, *, store: BaseStore) -> dict[str, Any]:
        store.put(("facts",), "last", {"text": state["messages"][-1].text})
        known = [item.value["text"] for item in store.search(("facts",))]
        return {"messages": [model.invoke([*state["messages"], HumanMessage(" ".join(known))])]}

    return StateGraph(MessagesState).add_node(remember).add_edge(START, "remember").compile(store=store)


def check_store(open_store: Callable[[], BaseStore]) -> None:
    done = same(
        lambda model: remembering(model, open_store()),
        lambda graph: [graph.invoke({"messages": [HumanMessage(text)]}) for text in ("one", "two")],
        {"remember": {"budget": 99, "output_region": "plan"}},
    )
    assert done.by_agent() == {"remember": {99}}
    assert [regions(result) for result in done.result] == [[None, "plan"]] * 2
    assert bare(done.graph.store.get(("facts",), "last").value) == {"text": "two"}


@pytest.mark.tried("stores: memory, SQLite", "langgraph-checkpoint", "langgraph-checkpoint-sqlite")
def test_stores() -> None:
    check_store(InMemoryStore)
    with SqliteStore.from_conn_string(":memory:") as store:
        store.setup()
        check_store(lambda: store)


@pytest.mark.tried("PostgreSQL store", "langgraph-checkpoint-postgres", "psycopg")
def test_postgres_store(postgres_server: str) -> None:
    with PostgresStore.from_conn_string(postgres_server) as store:
        store.setup()
        check_store(lambda: store)
