"""The functional API: an entrypoint is one node, its settings hold for its tasks too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.types import Command, interrupt

from memdecay_adapters import wrap
from tests.graphs.compare import same
from tests.graphs.recorder import Recorder

THREAD: Any = {"configurable": {"thread_id": "t"}}
NODES = {"flow": {"budget": 512, "pin": ["system"], "output_region": "plan"}}


@pytest.mark.tried("functional API: entrypoint and task, sync and async, final, previous, interrupts")
def test_entrypoint_and_tasks() -> None:
    def build(model: Recorder) -> Any:
        @task
        def draft(topic: str) -> str:
            return model.invoke(topic).text

        @entrypoint(checkpointer=InMemorySaver())
        def flow(topic: str, *, previous: Any = None) -> Any:
            both = [draft(topic), draft(f"{topic} again")]
            texts = [future.result() for future in both]
            said = model.invoke(f"{texts} {interrupt('may I?')}").text
            return entrypoint.final(value=[AIMessage(said), previous], save=texts)

        return flow

    def run(graph: Any) -> Any:
        turns = []
        for topic in ("one", "two"):
            turns += [graph.invoke(topic, THREAD), graph.invoke(Command(resume="yes"), THREAD)]
        return turns

    done = same(build, run, NODES)
    assert done.by_agent() == {"flow": {512}, "flow|draft": {512}}
    assert all(call.settings.pins == ("system",) for call in done.calls)
    message, previous = done.result[3]
    assert message.additional_kwargs["memdecay"] == [{"region": "plan", "source": "node"}]
    assert previous == ["one [1]", "one again [1]"]
    assert len(done.calls) == 6  # finished tasks are not run again when a turn is resumed


@pytest.mark.tried("functional API: entrypoint and task, sync and async, final, previous, interrupts")
def test_async_entrypoint_with_a_budget_of_its_own_for_a_task() -> None:
    def build(model: Recorder) -> Any:
        @task
        async def draft(topic: str) -> str:
            return (await model.ainvoke(topic)).text

        @entrypoint()
        async def flow(topic: str) -> list[str]:
            return list(await asyncio.gather(draft(topic), draft(f"{topic} again")))

        return flow

    def run(graph: Any) -> Any:
        return asyncio.run(graph.ainvoke("one"))

    assert same(build, run, NODES).by_agent() == {"flow|draft": {512}}
    assert same(build, run, model={"budgets": {"*|draft": 64}}).by_agent() == {"flow|draft": {64}}


def test_the_entrypoint_itself_is_not_changed() -> None:
    @entrypoint()
    def flow(topic: str) -> AIMessage:
        return AIMessage(topic)

    assert wrap(flow, NODES).invoke("x").additional_kwargs["memdecay"][0]["region"] == "plan"
    assert "memdecay" not in flow.invoke("x").additional_kwargs
