"""`MemDecayMiddleware` in ``create_agent``, alone and beside LangChain's own middleware."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    wrap_model_call,
)
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool

from memdecay_adapters import MemDecayMiddleware, mark, tag, wrap
from memdecay_adapters.langchain.middleware import is_memdecay_model
from memdecay_agents import ContextFraction, FixedBudget, MemDecayConfig, PoolShare
from memdecay_agents.errors import ConfigError, RegionError
from tests.graphs.compare import Run, bare, regions
from tests.graphs.recorder import Recorder, Script


@tool
def search(query: str) -> str:
    """Search."""
    return f"{query}: " + "found a crate. " * 20


def asks(name: str, number: int = 0, **args: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"{name}-{number}"}])


def searches_twice(messages: Sequence[BaseMessage], tools: Sequence[str]) -> str | AIMessage:
    found = sum(isinstance(m, ToolMessage) for m in messages)
    return asks("search", found, query=f"q{found}") if found < 2 and "search" in tools else f"{len(messages)} messages"


def invoke(agent: Any) -> Any:
    return agent.invoke({"messages": [HumanMessage("hello")]}, {"configurable": {"thread_id": "t"}})


def ainvoke(agent: Any) -> Any:
    return asyncio.run(agent.ainvoke({"messages": [HumanMessage("hello")]}, {"configurable": {"thread_id": "t"}}))


def with_and_without(
    ours: MemDecayMiddleware, others: Callable[[Recorder], list[Any]], run: Callable[[Any], Any], script: Script
) -> Run:
    """Run an agent with our middleware last and without it, and hold the results against each other."""
    plain, model = Recorder(script=script, calls=[]), Recorder(script=script, calls=[])
    expected = run(create_agent(plain, [search], system_prompt="Be short.", name="clerk", middleware=others(plain)))
    agent = create_agent(model, [search], system_prompt="Be short.", name="clerk", middleware=[*others(model), ours])
    result = run(agent)
    assert bare(result) == bare(expected)
    return Run(result, model.calls, agent)


both_ways = pytest.mark.parametrize("run", [invoke, ainvoke])


@pytest.mark.tried("MemDecayMiddleware in create_agent", "langchain")
@both_ways
def test_settings_reach_every_call(run: Callable[[Any], Any]) -> None:
    ours = MemDecayMiddleware(budget=512, pin="system", output_region="plan", tool_regions={"search": "retrieval"})
    done = with_and_without(ours, lambda model: [], run, searches_twice)
    assert done.by_agent() == {"clerk": {512}}
    assert all(call.settings.pins == ("system",) for call in done.calls)
    assert done.calls[-1].regions == (("system",), ("user",), (), ("retrieval",), (), ("retrieval",))
    assert regions(done.result) == [None, "plan", None, "plan", None, "plan"]  # results are tagged for the call only


@pytest.mark.tried("... beside TodoListMiddleware", "langchain")
@both_ways
def test_beside_todo_lists(run: Callable[[Any], Any]) -> None:
    def plans_first(messages: Sequence[BaseMessage], tools: Sequence[str]) -> str | AIMessage:
        if not any(isinstance(m, ToolMessage) for m in messages):
            return asks("write_todos", todos=[{"content": "look", "status": "pending"}])
        return searches_twice(messages, tools)

    done = with_and_without(MemDecayMiddleware(budget=512), lambda model: [TodoListMiddleware()], run, plans_first)
    assert done.by_agent() == {"clerk": {512}}
    assert done.calls[1].regions[-1] == ("plan",)
    assert done.result["todos"][0]["content"] == "look"


@pytest.mark.tried("... beside SummarizationMiddleware", "langchain")
@both_ways
def test_summaries_are_exempt(run: Callable[[Any], Any]) -> None:
    def others(model: Recorder) -> list[Any]:
        return [SummarizationMiddleware(model, trigger=("messages", 4), keep=("messages", 2))]

    def script(messages: Sequence[BaseMessage], tools: Sequence[str]) -> str | AIMessage:
        if not tools:
            return "a summary"
        summarized = any(m.additional_kwargs.get("lc_source") == "summarization" for m in messages)
        return "done" if summarized else searches_twice(messages, tools)

    done = with_and_without(MemDecayMiddleware(budget=512), others, run, script)
    summaries = [call for call in done.calls if call.metadata.get("lc_source") == "summarization"]
    turns = [call for call in done.calls if call not in summaries]
    assert summaries
    assert all(c.settings.unlimited and c.settings.session == "" for c in summaries)
    assert {(c.agent, c.budget_tokens, c.settings.session) for c in turns} == {("clerk", 512, "t")}
    assert ("scratchpad",) in turns[-1].regions  # the summary in the agent's prompt
    # budgets that come from the graph do not reach them either
    model = Recorder(script=script, calls=[])
    run(wrap(create_agent(model, [search], middleware=others(model)), budget=64))
    asked = {call.metadata.get("lc_source"): call.budget_tokens for call in model.calls}
    assert asked == {"summarization": None, None: 64}


@pytest.mark.tried("... beside ContextEditingMiddleware", "langchain")
@both_ways
def test_the_last_one_sees_edited_requests(run: Callable[[Any], Any]) -> None:
    edit = ClearToolUsesEdit(trigger=10, keep=1, placeholder="[cleared]")
    ours = MemDecayMiddleware(budget=512, tool_regions={"search": "retrieval"})
    done = with_and_without(ours, lambda model: [ContextEditingMiddleware(edits=[edit])], run, searches_twice)
    assert done.by_agent() == {"clerk": {512}}
    assert done.calls[-1].regions == (("system",), ("user",), (), ("retrieval",), (), ("retrieval",))
    assert "[cleared]" not in [m.text for m in done.result["messages"]]  # edits and tags stay out of the state


@pytest.mark.tried("... all of them together", "langchain")
@both_ways
def test_all_together(run: Callable[[Any], Any]) -> None:
    def others(model: Recorder) -> list[Any]:
        summary = SummarizationMiddleware(model, trigger=("messages", 50), keep=("messages", 20))
        edits = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=10_000)])
        return [TodoListMiddleware(), summary, edits]

    done = with_and_without(MemDecayMiddleware(budget=None, agent="boss"), others, run, searches_twice)
    assert done.by_agent() == {"boss": {None}}
    assert all(call.settings.unlimited for call in done.calls)


@pytest.mark.tried("... with another chat model, which is left alone", "langchain")
@both_ways
def test_another_chat_model_is_left_alone(run: Callable[[Any], Any]) -> None:
    class Strict(GenericFakeChatModel):
        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            assert kwargs == {"tool_choice": None}  # create_agent's own
            assert not any("memdecay" in message.additional_kwargs for message in messages)
            return super()._generate(messages, stop, run_manager)

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self.bind(**kwargs)

    model = Strict(messages=iter([asks("search", query="q"), AIMessage("done")]))
    ours = MemDecayMiddleware(budget=512, pin="system", tool_regions={"search": "retrieval"})
    assert run(create_agent(model, [search], middleware=[ours]))["messages"][-1].text == "done"
    assert not is_memdecay_model(model)
    assert is_memdecay_model(Recorder().bind(stop=["x"]).with_config(tags=["t"]))


def test_what_another_middleware_says_of_the_call_wins() -> None:
    @wrap_model_call
    def half(request: Any, handler: Any) -> Any:
        return handler(request.override(model_settings={"budget": 64, "temperature": 0.5}))

    ours = MemDecayMiddleware(budget=512, pin=["plan"])
    model = Recorder(calls=[])
    invoke(create_agent(model, [], middleware=[half, ours]))
    assert model.calls[0].budget_tokens == 64
    assert model.calls[0].settings.pins == ("plan",)
    assert model.calls[0].keywords["temperature"] == 0.5


def test_a_tag_that_a_result_carries_wins() -> None:
    model = Recorder(calls=[])
    result = mark(ToolMessage("first the crates", name="plan", tool_call_id="plan-0"), "plan")
    agent = create_agent(model, [search], middleware=[MemDecayMiddleware(tool_regions={"plan": "retrieval"})])
    agent.invoke({"messages": [HumanMessage("hello"), asks("plan"), result]})
    assert model.calls[0].regions[-1] == ("plan",)


def test_a_tag_of_the_tool_itself_wins() -> None:
    @tool
    def plan() -> list[dict[str, Any]]:
        """Make a plan."""
        return [tag("first the crates", "plan")]

    model = Recorder(
        script=lambda messages, tools: "done" if isinstance(messages[-1], ToolMessage) else asks("plan"), calls=[]
    )
    invoke(create_agent(model, [plan], middleware=[MemDecayMiddleware(tool_regions={"plan": "retrieval"})]))
    assert model.calls[1].regions[-1] == ("plan",)


@pytest.mark.parametrize(
    "budget",
    [
        FixedBudget(tokens=512, guaranteed_tokens=256),
        ContextFraction(fraction=0.25, floor_tokens=64),
        PoolShare(weight=2.0, guaranteed_tokens=64),
    ],
)
def test_every_kind_of_budget_reaches_the_call(budget: Any) -> None:
    model = Recorder(calls=[])
    invoke(create_agent(model, [], middleware=[MemDecayMiddleware(budget=budget)]))
    invoke(wrap(create_agent(model, []), budget=budget))
    assert [call.settings.budget for call in model.calls] == [budget, budget]


def test_bad_settings_are_refused_when_the_middleware_is_made() -> None:
    with pytest.raises(ConfigError, match="MemDecayMiddleware"):
        MemDecayMiddleware(budget=-1)
    with pytest.raises(RegionError, match="'plam'"):
        MemDecayMiddleware(pin="plam")
    with pytest.raises(RegionError, match=r"tool_regions\['search'\]"):
        MemDecayMiddleware(tool_regions={"search": "notes"})
    custom = MemDecayConfig(regions={"notes": {"base_priority": 1.0}})
    MemDecayMiddleware(tool_regions={"search": "notes"}, config=custom)
