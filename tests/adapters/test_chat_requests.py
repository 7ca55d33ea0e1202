"""What reaches the engine from ChatMemDecay: spans, settings by their precedence, budgets, sampling."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from memdecay_adapters.langchain.chat_model import ChatMemDecay
from memdecay_adapters.langchain.marking import tag
from memdecay_adapters.langchain.region_rules import Between, RegionRules
from memdecay_adapters.langgraph import wrap
from memdecay_agents import ContextFraction, FixedBudget, MemDecayConfig, PoolShare
from memdecay_agents.errors import RegionError
from tests.adapters.chat_calls import collect, merged
from tests.adapters.fake_engine import FakeEngine


def test_spans_partition_the_prompt_and_tags_are_read(fake: FakeEngine) -> None:
    question = HumanMessage([tag("A fact. " * 9, "retrieval"), tag("What is it?", "user")])
    ChatMemDecay(engine=fake).invoke([SystemMessage("Be brief."), question])
    ids, _, hints = fake.requests[-1]
    hints.check(len(ids), fake.config)
    assert {"system", "retrieval", "user"} <= {span.region for span in hints.spans}
    assert (hints.session, hints.agent, hints.turn, hints.budget_tokens) == ("", "default", 0, None)


def test_precedence_of_settings(fake: FakeEngine) -> None:
    model = ChatMemDecay(engine=fake, default_budget=100, budgets={"boss": 200, "w*": None}, pin="system")
    node = {"memdecay": {"agent": "boss", "pin": ["plan"], "output_region": "plan"}}

    def sent(metadata: dict[str, Any], **call: Any) -> tuple[Any, ...]:
        model.invoke("hi", {"metadata": metadata}, **call)
        return fake.hints.agent, fake.hints.budget_tokens, fake.hints.pins, fake.hints.output_region

    assert sent({}) == ("default", 100, ("system",), "scratchpad")
    assert sent(node) == ("boss", 200, ("plan",), "plan")
    assert sent({"memdecay": {"agent": "worker"}})[1] is None
    assert sent({"memdecay": {**node["memdecay"], "budget": 300}})[1] == 300
    assert sent(node, budget=400, pin=["user"], agent="me", output_region="user") == (
        "me",
        400,
        ("user",),
        "user",
    )
    assert sent({"memdecay": {"agent": "boss", "budget": None}})[1] is None


def test_no_budget_overrides_the_default_of_the_configuration(tokenizer: Any) -> None:
    engine = FakeEngine(tokenizer, config=MemDecayConfig(default_budget_tokens=64))
    ChatMemDecay(engine=engine).invoke("hi")
    assert engine.hints.budget_tokens is None  # the engine's default of 64
    ChatMemDecay(engine=engine).invoke("hi", budget=None)
    assert engine.hints.budget_tokens is not None
    assert engine.hints.budget_tokens >= engine.max_model_len


def test_summarisation_is_exempt(fake: FakeEngine) -> None:
    model = ChatMemDecay(engine=fake, default_budget=64)
    model.invoke("hi", {"metadata": {"lc_source": "summarization", "thread_id": "t", "memdecay": {"budget": 32}}})
    assert (fake.hints.budget_tokens, fake.hints.session) == (None, "")


@pytest.mark.parametrize("how", ["invoke", "stream", "messages", "async", "async messages", "with_config"])
def test_settings_and_thread_reach_the_engine_from_inside_a_graph(fake: FakeEngine, how: str) -> None:
    model: Any = ChatMemDecay(engine=fake)
    if how == "with_config":
        model = model.with_config(metadata={"memdecay": {"budget": 96}})

    def body(state: MessagesState) -> dict[str, Any]:
        if how in ("stream", "with_config"):
            return {"messages": [merged(list(model.stream(state["messages"])))]}
        return {"messages": [model.invoke(state["messages"])]}

    async def abody(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("planner", abody if "async" in how else body)
    builder.add_edge(START, "planner")
    settings = {"planner": {"budget": 128, "pin": ["system"], "output_region": "plan"}}
    graph = wrap(builder, settings).compile(checkpointer=MemorySaver())
    config: Any = {"configurable": {"thread_id": "t/1"}}
    mode = "messages" if "messages" in how else "values"
    for turn in range(2):
        if "async" in how:
            asyncio.run(collect(graph.astream({"messages": "hi"}, config, stream_mode=mode)))
        else:
            list(graph.stream({"messages": "hi"}, config, stream_mode=mode))
        hints = fake.hints
        assert hints.session_id == ("default", "t/1", "planner", "")
        assert (hints.agent, hints.turn, hints.pins) == ("planner", turn, ("system",))
        assert hints.budget_tokens == (96 if how == "with_config" else 128)
        assert hints.output_region == "plan"
    last = graph.get_state(config).values["messages"][-1]
    assert last.additional_kwargs["memdecay"] == [{"region": "plan", "source": "node"}]
    assert "plan" in {span.region for span in hints.spans}  # the first answer, read back in the second turn


def test_sampling(fake: FakeEngine) -> None:
    model = ChatMemDecay(engine=fake, temperature=0.5, max_tokens=7, stop=["END"], seed=3, top_p=0.9)
    model.invoke("hi")
    assert (fake.sampling.temperature, fake.sampling.max_tokens, fake.sampling.seed) == (0.5, 7, 3)
    assert (fake.sampling.stop, fake.sampling.top_p, fake.sampling.logprobs) == (["END"], 0.9, None)
    model.invoke("hi", stop=["X"], max_completion_tokens=9, temperature=0.0, logprobs=True, top_logprobs=2)
    assert (fake.sampling.stop, fake.sampling.max_tokens, fake.sampling.temperature) == (["X"], 9, 0.0)
    assert fake.sampling.logprobs == 2
    ChatMemDecay(engine=fake).invoke("hi")
    prompt_tokens = len(fake.requests[-1][0])
    assert fake.sampling.max_tokens == min(512, fake.max_model_len - prompt_tokens)


def test_budgets_that_are_no_number_reach_the_engine_from_call_map_and_graph(fake: FakeEngine) -> None:
    share = PoolShare(weight=2.0, guaranteed_tokens=64)
    fraction = ContextFraction(fraction=0.5, floor_tokens=64)
    model = ChatMemDecay(engine=fake, default_budget={"kind": "share", "weight": 2.0, "guaranteed_tokens": 64})
    model.invoke("hello")
    assert (fake.hints.budget, fake.hints.budget_tokens) == (share, None)
    model.invoke("hello", budget=fraction)
    assert (fake.hints.budget, fake.hints.budget_tokens) == (fraction, None)
    model.invoke("hello", budget=256)
    assert (fake.hints.budget, fake.hints.budget_tokens) == (None, 256)
    by_agent = ChatMemDecay(engine=fake, budgets={"*": FixedBudget(tokens=256, guaranteed_tokens=64)})
    by_agent.invoke("hello")
    assert fake.hints.budget == FixedBudget(tokens=256, guaranteed_tokens=64)


def test_region_rules_reach_the_prompt(fake: FakeEngine) -> None:
    rules = RegionRules(between=[Between("<doc>", "</doc>", "retrieval")])
    model = ChatMemDecay(engine=fake, region_rules=rules)
    model.invoke("Read <doc>pears, pears, pears</doc> and answer.")
    assert "retrieval" in {span.region for span in fake.hints.spans}
    assert model._identifying_params != ChatMemDecay(engine=fake)._identifying_params
    with pytest.raises(RegionError, match="nowhere"):
        ChatMemDecay(engine=fake, region_rules=RegionRules(plan_tools=(), tool_regions={"t": "nowhere"})).invoke("x")
    with pytest.raises(ValueError, match="RegionRules"):
        ChatMemDecay(engine=fake, region_rules={"between": []})


def test_rewind_reaches_the_engine(fake: FakeEngine) -> None:
    ChatMemDecay(engine=fake, rewind="recompute").invoke("hello")
    assert fake.hints.rewind == "recompute"
