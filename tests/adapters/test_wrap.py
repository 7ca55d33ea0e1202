"""`wrap` on real LangGraph graphs: settings reach the chat model, stamps reach the messages."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Overwrite, Send, interrupt
from pydantic import BaseModel

from memdecay_adapters.langgraph import MemDecayStateGraph, NodeSettings, wrap
from memdecay_adapters.langgraph.metadata import (
    call_metadata,
    merge_settings,
    parse_settings,
    settings_from_metadata,
)
from memdecay_adapters.langgraph.stamp import known_messages, stamp_output
from memdecay_agents import ContextFraction, FixedBudget, PoolShare
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ConfigError, RegionError

PLAN = {"planner": {"output_region": "plan", "pin": ["system", "plan"], "budget": 4096, "agent": "boss"}}


class Probe(BaseChatModel):
    """A chat model that records the run metadata of each call and answers with fixed text."""

    seen: list[dict[str, Any]]

    @property
    def _llm_type(self) -> str:
        return "probe"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        self.seen.append(call_metadata(run_manager.metadata))
        return ChatResult(generations=[ChatGeneration(message=AIMessage("an answer"))])

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.bind(tools=tools)


def probe() -> Probe:
    return Probe(seen=[])


def region_of(message: BaseMessage) -> str | None:
    tags = message.additional_kwargs.get("memdecay")
    return tags[0]["region"] if tags else None


def regions(result: dict[str, Any]) -> list[str | None]:
    return [region_of(m) for m in result["messages"]]


def one_node(body: Any, state: Any = MessagesState) -> StateGraph[Any, Any, Any, Any]:
    builder = StateGraph(state)
    builder.add_node("planner", body)
    builder.add_edge(START, "planner")
    return builder


def sync_node(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage("plan")]}


async def async_node(state: MessagesState) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"messages": [AIMessage("plan")]}


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


def test_wrapping_again_replaces_the_settings_and_stamps_once() -> None:
    graph = wrap(wrap(one_node(sync_node).compile(), PLAN), {"planner": {"output_region": "retrieval"}})
    assert regions(graph.invoke({"messages": "hi"})) == [None, "retrieval"]
    assert graph.nodes["planner"].metadata["memdecay"] == {
        "agent": "boss", "pin": ["system", "plan"], "budget_tokens": 4096, "output_region": "retrieval",
    }  # fmt: skip


@pytest.mark.parametrize("is_async", [False, True])
def test_settings_reach_the_chat_model_inside_the_node(is_async: bool) -> None:
    model = probe()

    def body(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    async def abody(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = wrap(one_node(abody if is_async else body).compile(checkpointer=MemorySaver()), PLAN)
    config: RunnableConfig = {"configurable": {"thread_id": "t1"}}
    result = (
        asyncio.run(graph.ainvoke({"messages": "hi"}, config)) if is_async else graph.invoke({"messages": "hi"}, config)
    )
    (metadata,) = model.seen
    assert metadata["langgraph_node"] == "planner"
    assert metadata["thread_id"] == "t1"
    assert settings_from_metadata(metadata) == NodeSettings(
        agent="boss", pin=("system", "plan"), budget=FixedBudget(tokens=4096), output_region="plan"
    )
    assert regions(result) == [None, "plan"]


def test_subgraph_settings_extend_the_outer_ones_and_inherited_messages_are_not_stamped() -> None:
    model = probe()
    inner = MemDecayStateGraph(MessagesState)
    inner.add_node("writer", lambda s: {"messages": [model.invoke(s["messages"])]}, budget=64)
    inner.add_edge(START, "writer")
    outer = StateGraph(MessagesState)
    outer.add_node("planner", inner.compile())
    outer.add_edge(START, "planner")
    for graph in (wrap(outer.compile(), PLAN), wrap(outer, PLAN).compile()):
        assert [name for name, _ in graph.get_subgraphs()] == ["planner"]
        model.seen.clear()
        assert regions(graph.invoke({"messages": "hi"})) == [None, "plan"]
        found = settings_from_metadata(model.seen[0])
        assert (found.agent, found.budget, found.pin) == ("boss", FixedBudget(tokens=64), ("system", "plan"))


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


def test_an_explicit_tag_of_the_user_wins() -> None:
    tagged = AIMessage("x", additional_kwargs={"memdecay": [{"region": "retrieval"}]})
    block = AIMessage([{"type": "text", "text": "x", "extras": {"memdecay": {"region": "user"}}}])
    out = stamp_output({"messages": [tagged, block]}, known_messages({}), "plan")
    assert out["messages"] == [tagged, block]


def test_metadata_in_the_graph_definition_needs_no_wrap() -> None:
    model = probe()
    builder = StateGraph(MessagesState)
    node_metadata = {"memdecay": {"pin": ["system"], "budget": 128}, "mine": 1}
    builder.add_node("a", lambda s: {"messages": [model.invoke("x")]}, metadata=node_metadata)
    builder.add_edge(START, "a")
    builder.compile().invoke({"messages": "hi"})
    assert settings_from_metadata(model.seen[0]) == NodeSettings(pin=("system",), budget=FixedBudget(tokens=128))
    wrapped = wrap(builder, {"a": {"budget": 256}}, pin=["user"], budget=9)
    assert wrapped.nodes["a"].metadata == {"memdecay": {"pin": ["system"], "budget_tokens": 256}, "mine": 1}


def test_with_config_metadata_beats_node_metadata() -> None:
    model = probe()
    bound = model.with_config(metadata={"memdecay": {"budget": 7}})
    graph = wrap(one_node(lambda s: {"messages": [bound.invoke("x")]}), PLAN).compile()
    graph.invoke({"messages": "hi"})
    assert settings_from_metadata(model.seen[0]) == NodeSettings(
        agent="boss", pin=("system", "plan"), budget=FixedBudget(tokens=7), output_region="plan"
    )


def test_memdecay_state_graph() -> None:
    model = probe()
    builder = MemDecayStateGraph(MessagesState)
    builder.add_node(
        "planner",
        lambda s: {"messages": [model.invoke("x")]},
        pin=["plan"], budget=None, agent="boss", output_region="plan", metadata={"memdecay": {"budget": 5}},
    ).add_edge(START, "planner")  # fmt: skip
    assert regions(builder.compile().invoke({"messages": "hi"})) == [None, "plan"]
    found = settings_from_metadata(model.seen[0])
    assert found.has("budget")
    assert found.budget is None
    with pytest.raises(RegionError, match=r"node 'sync_node'.*'plam'.*plan"):
        builder.add_node(sync_node, output_region="plam")
    assert "sync_node" not in builder.nodes
    custom = MemDecayStateGraph(
        MessagesState, memdecay_config=MemDecayConfig(regions={"notes": {"base_priority": 1.0}})
    )
    custom.add_node(sync_node, output_region="notes")
    assert custom.nodes["sync_node"].metadata == {"memdecay": {"output_region": "notes"}}


@pytest.mark.parametrize(
    ("nodes", "kind", "says"),
    [
        ({"plannner": {"budget": 1}}, ConfigError, ["'plannner'", "'planner'"]),
        ({"__start__": {"budget": 1}}, ConfigError, ["langgraph's own"]),
        ({"planner": {"budgett": 1}}, ConfigError, ["node 'planner'", "'budgett'", "budget_tokens"]),
        ({"planner": {"budget": 0}}, ConfigError, ["node 'planner'", "budget", "greater"]),
        ({"planner": {"budget": True}}, ConfigError, ["node 'planner'", "no budget"]),
        ({"planner": {"budget": "4k"}}, ConfigError, ["node 'planner'", "'4k'"]),
        ({"planner": {"budget": 1, "budget_tokens": 2}}, ConfigError, ["given twice"]),
        ({"planner": {"pin": [1]}}, ConfigError, ["node 'planner'", "pin"]),
        ({"planner": 5}, ConfigError, ["node 'planner'", "mapping"]),
        ({"planner": {"pin": ["sytem"]}}, RegionError, ["node 'planner'", "'sytem'", "system"]),
        ({"planner": {"output_region": "plam"}}, RegionError, ["output_region", "'plam'", "tool_out"]),
    ],
)
def test_bad_settings_are_refused_before_anything_changes(nodes: Any, kind: type[Exception], says: list[str]) -> None:
    builder = one_node(sync_node)
    for graph in (builder, builder.compile()):
        with pytest.raises(kind) as caught:
            wrap(graph, nodes)
        assert all(word in str(caught.value) for word in says), caught.value
    assert builder.nodes["planner"].metadata is None


def test_only_graphs_can_be_wrapped() -> None:
    with pytest.raises(ConfigError, match="StateGraph"):
        wrap(sync_node, {})  # type: ignore[type-var]


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


setting = st.fixed_dictionaries(
    {},
    optional={
        "agent": st.sampled_from(["a", "b"]),
        "pin": st.lists(st.sampled_from(["system", "plan"]), unique=True),
        "budget": st.sampled_from(
            [
                None,
                1,
                9,
                FixedBudget(tokens=512, guaranteed_tokens=256),
                ContextFraction(fraction=0.25, floor_tokens=64),
                PoolShare(weight=2.0, guaranteed_tokens=64),
            ]
        ),
        "output_region": st.just("plan"),
    },
)


@given(outer=setting, inner=setting)
def test_merging_keeps_each_setting_of_the_inner_one(outer: dict[str, Any], inner: dict[str, Any]) -> None:
    a, b = parse_settings(outer, "x"), parse_settings(inner, "x")
    merged = merge_settings(a, b)
    assert merged == parse_settings({**outer, **inner}, "x")
    assert merged.model_fields_set == a.model_fields_set | b.model_fields_set
    assert parse_settings(merged.as_metadata(), "x") == merged


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
