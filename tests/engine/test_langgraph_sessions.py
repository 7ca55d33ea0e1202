"""Sessions under LangGraph's own moves: turns, time travel, branches at once, cancelled runs, deleted threads.

Budgets here never bind, so that every answer must be the one that the whole prompt, computed anew, would give.
"""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send

from memdecay_adapters import ChatMemDecay, wrap
from tests.engine.prompts import prose
from tests.engine.watching import wait_until

pytestmark = pytest.mark.engine

RULES = SystemMessage("Answer in one short sentence. " + prose(3, sentences=8))


@pytest.fixture
def engine(engine_named):
    engine = engine_named("sessions")
    engine.reset_prefix_cache()
    yield engine
    engine.close_sessions()
    assert engine.pool_stats().free_pages == engine.pool_stats().total_pages


@pytest.fixture
def llm(engine):
    return ChatMemDecay(engine=engine, max_tokens=10, budgets={"*": 6000})


def chat_graph(llm: ChatMemDecay, checkpointer: Any = None) -> Any:
    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [llm.invoke([RULES, *state["messages"]])]}

    async def answer_async(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await llm.ainvoke([RULES, *state["messages"]])]}

    builder = StateGraph(MessagesState).add_node("answer", RunnableLambda(answer, answer_async))
    builder.add_edge(START, "answer").add_edge("answer", END)
    return wrap(builder.compile(checkpointer=checkpointer or InMemorySaver()))


def assert_as_computed_anew(llm: ChatMemDecay, engine: Any, messages: list[Any]) -> None:
    """Each answer is what the prompt before it gives without any session or cached prefix."""
    for at, message in enumerate(messages):
        if isinstance(message, AIMessage):
            engine.run_on_engine_thread(lambda core, internals: core.reset_prefix_cache())
            assert llm.invoke([RULES, *messages[:at]]).content == message.content


def continued(message: AIMessage) -> int:
    return message.response_metadata["memdecay"]["continued_tokens"]


def thread(name: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": name}}


def test_turns_of_a_thread_compute_only_what_is_new(llm, engine):
    app = chat_graph(llm)
    for question in ("Who counts the lanterns?", "And who else?", "Where do they keep them?"):
        state = app.invoke({"messages": [HumanMessage(question)]}, thread("a"))
    answers = [message for message in state["messages"] if isinstance(message, AIMessage)]
    assert continued(answers[0]) == 0
    assert 0 < continued(answers[1]) < continued(answers[2])
    assert engine.pool_stats().idle_sessions == 1
    assert_as_computed_anew(llm, engine, state["messages"])


def test_time_travel_goes_on_from_the_chosen_checkpoint(llm, engine):
    app = chat_graph(llm)
    for question in ("Who counts the lanterns?", "And who else?", "Where do they keep them?"):
        last = app.invoke({"messages": [HumanMessage(question)]}, thread("a"))
    earlier = next(
        snapshot for snapshot in app.get_state_history(thread("a"))
        if len(snapshot.values["messages"]) == 2 and not snapshot.next
    )  # fmt: skip
    branch = app.invoke({"messages": [HumanMessage("What is behind the bridge?")]}, earlier.config)
    assert [m.content for m in branch["messages"][:2]] == [m.content for m in last["messages"][:2]]
    rewound = branch["messages"][-1].response_metadata["memdecay"]
    assert rewound["continued_tokens"] > 0
    assert rewound["divergent_region"] is not None
    assert_as_computed_anew(llm, engine, branch["messages"])
    # and the time line that was left can be taken up again
    back = app.invoke({"messages": [HumanMessage("Is that all?")]}, next(
        snapshot.config for snapshot in app.get_state_history(thread("a"))
        if len(snapshot.values["messages"]) == 6 and not snapshot.next
    ))  # fmt: skip
    assert_as_computed_anew(llm, engine, back["messages"])


class Fan(TypedDict):
    topics: list[str]
    answers: Annotated[list[tuple[str, str]], operator.add]


def test_branches_of_one_thread_that_run_at_once_do_not_mix(llm, engine):
    def worker(state: dict[str, Any]) -> dict[str, Any]:
        reply = llm.invoke([RULES, HumanMessage(f"Describe the {state['topic']}.")])
        return {"answers": [(state["topic"], reply.content)]}

    builder = StateGraph(Fan)
    builder.add_node("worker", worker)
    builder.add_conditional_edges(
        START, lambda state: [Send("worker", {"topic": t}) for t in state["topics"]], ["worker"]
    )
    builder.add_edge("worker", END)
    app = wrap(builder.compile(checkpointer=InMemorySaver()))
    topics = ["lantern", "bridge", "orchard", "kettle"]
    for _ in range(2):
        state = app.invoke({"topics": topics, "answers": []}, thread("fan"))
    assert sorted(topic for topic, _ in state["answers"]) == sorted(topics * 2)
    for topic, answer in state["answers"]:
        engine.run_on_engine_thread(lambda core, internals: core.reset_prefix_cache())
        assert llm.invoke([RULES, HumanMessage(f"Describe the {topic}.")]).content == answer


async def test_a_cancelled_run_leaves_a_session_that_the_next_turn_can_use(llm, engine):
    app = chat_graph(llm)
    first = await app.ainvoke({"messages": [HumanMessage("Who counts the lanterns?")]}, thread("c"))
    long = ChatMemDecay(engine=engine, max_tokens=2000, budgets={"*": 6000})
    slow = chat_graph(long, app.checkpointer)
    run = asyncio.create_task(slow.ainvoke({"messages": [HumanMessage("Tell me everything.")]}, thread("c")))

    def running() -> bool:
        return bool(engine.run_on_engine_thread(lambda core, internals: len(internals.scheduler.running)))

    await asyncio.to_thread(wait_until, running)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await asyncio.to_thread(wait_until, lambda: not running())
    after = await app.ainvoke({"messages": [HumanMessage("And who else?")]}, thread("c"))
    assert after["messages"][1].content == first["messages"][1].content
    assert_as_computed_anew(llm, engine, after["messages"])


def test_a_released_thread_gives_its_pages_back_and_the_others_keep_theirs(llm, engine):
    app = chat_graph(llm)
    for name in ("keep", "drop"):
        app.invoke({"messages": [HumanMessage("Who counts the lanterns?")]}, thread(name))
    app.checkpointer.delete_thread("drop")
    assert llm.release_thread("drop") == 1
    assert llm.release_thread("drop") == 0
    assert engine.pool_stats().idle_sessions == 1
    state = app.invoke({"messages": [HumanMessage("And who else?")]}, thread("keep"))
    assert continued(state["messages"][-1]) > 0


def test_releasing_a_thread_starts_no_engine(no_engine):
    assert ChatMemDecay().release_thread("anything") == 0
