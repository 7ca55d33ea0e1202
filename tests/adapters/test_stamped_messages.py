"""Which messages of a node's output get its region, in whatever shape the output is."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Overwrite
from pydantic import BaseModel

from memdecay_adapters.langgraph import wrap
from memdecay_adapters.langgraph.stamp import known_messages, stamp_output
from tests.adapters.small_graphs import PLAN, one_node, region_of, regions


def test_an_explicit_tag_of_the_user_wins() -> None:
    tagged = AIMessage("x", additional_kwargs={"memdecay": [{"region": "retrieval"}]})
    block = AIMessage([{"type": "text", "text": "x", "extras": {"memdecay": {"region": "user"}}}])
    out = stamp_output({"messages": [tagged, block]}, known_messages({}), "plan")
    assert out["messages"] == [tagged, block]


class Schema(BaseModel):
    messages: Annotated[list[Any], operator.add] = []
    note: str = ""


@dataclass
class DataState:
    messages: Annotated[list[Any], operator.add] = field(default_factory=list)
    count: int = 0


class Plain(TypedDict):
    messages: Annotated[list[Any], operator.add]


def test_messages_without_ids_are_known_by_identity() -> None:
    def body(state: Plain) -> dict[str, Any]:
        return {"messages": [*state["messages"], AIMessage("plan")]}

    result = wrap(one_node(body, Plain), PLAN).compile().invoke({"messages": [HumanMessage("hi")]})
    assert regions(result) == [None, None, "plan"]


new = st.builds(AIMessage, content=st.text(max_size=3))
shapes = st.sampled_from(
    [
        lambda m: {"messages": [m], "n": 1},
        lambda m: {"messages": m},
        lambda m: {"messages": Overwrite([m])},
        lambda m: {"deep": {"inside": (m, 1)}},
        lambda m: Command(update={"messages": [m]}, graph=Command.PARENT),
        lambda m: Command(update=[("messages", [m])]),
        lambda m: [Command(update={"messages": [m]}), {"n": 2}],
        lambda m: [m],
        lambda m: m,
        lambda m: Schema(messages=[m]),
        lambda m: DataState(messages=[m]),
    ]
)


def _flatten(value: Any) -> list[BaseMessage]:
    if isinstance(value, BaseMessage):
        return [value]
    if isinstance(value, (Command, Overwrite)):
        return _flatten(value.update if isinstance(value, Command) else value.value)
    if isinstance(value, dict):
        return [m for v in value.values() for m in _flatten(v)]
    if isinstance(value, (list, tuple)):
        return [m for v in value for m in _flatten(v)]
    if isinstance(value, (BaseModel, DataState)):
        return _flatten(value.messages)
    return []


@settings(max_examples=60, deadline=None)
@given(message=new, shape=shapes)
def test_stamping_copies_and_touches_only_new_messages(message: AIMessage, shape: Callable[[Any], Any]) -> None:
    output = shape(message)
    stamped = stamp_output(output, known_messages({"messages": []}), "plan", {"messages"})
    (copy,) = _flatten(stamped)
    assert region_of(copy) == "plan"
    assert copy.content == message.content
    assert not message.additional_kwargs  # nothing was changed in place
    assert type(stamped) is type(output)
    assert stamp_output(output, known_messages([message]), "plan") is output  # known: the very same object


def test_values_without_messages_come_back_untouched() -> None:
    for output in (
        None,
        {"n": 1},
        [],
        Command(goto="x"),
        {"messages": [RemoveMessage(id="1")]},
        Schema(note="x"),
    ):
        assert stamp_output(output, known_messages({}), "plan", {"messages"}) is output


def test_what_a_subgraphs_tools_said_keeps_the_region_of_its_tool() -> None:
    def work(state: MessagesState) -> dict[str, Any]:
        call = {"name": "look", "args": {}, "id": "c1"}
        return {
            "messages": [AIMessage("", tool_calls=[call]), ToolMessage("seen", tool_call_id="c1"), AIMessage("So.")]
        }

    inner = StateGraph(MessagesState).add_node(work).add_edge(START, "work").compile()
    builder = StateGraph(MessagesState).add_node("sub", inner).add_node(work).add_edge(START, "sub")
    graph = wrap(
        builder.add_edge("sub", "work").compile(),
        nodes={"sub": {"output_region": "plan"}, "work": {"output_region": "plan"}},
    )
    found = graph.invoke({"messages": [HumanMessage("Go.")]})["messages"]
    assert [m.type for m in found if m.additional_kwargs.get("memdecay")] == ["ai", "ai", "ai", "tool", "ai"]
