"""ChatMemDecay: what reaches the engine, and what comes back; on a fake engine, and on the real one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.exceptions import ContextOverflowError, OutputParserException
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from memdecay_adapters.langchain.chat_model import ChatMemDecay
from memdecay_adapters.langchain.marking import mark, tag
from memdecay_adapters.langchain.region_rules import Between, RegionRules
from memdecay_adapters.langchain.tool_choice import openai_tools
from memdecay_adapters.langchain.warn import MemDecayWarning, reset_warnings
from memdecay_adapters.langgraph import wrap
from memdecay_agents import ContextFraction, FixedBudget, MemDecayConfig, PoolShare
from memdecay_agents.errors import (
    BudgetError,
    ConfigError,
    PolicyError,
    RegionError,
    TagError,
    UnsupportedError,
)
from tests.adapters.chat_calls import CALL, add, collect, four_ways, lookup, merged
from tests.adapters.fake_engine import FakeEngine


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@pytest.fixture
def fake(tokenizer: Any) -> FakeEngine:
    return FakeEngine(tokenizer)


# ---- what comes back


def test_importing_and_making_a_model_starts_nothing() -> None:
    code = (
        "import sys; from memdecay_adapters import ChatMemDecay; ChatMemDecay();"
        "print([m for m in ('vllm', 'torch', 'xgrammar') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_four_ways_give_one_answer(fake: FakeEngine) -> None:
    for message in four_ways(ChatMemDecay(engine=fake), "hi"):
        assert message.content == "Hello there"
        usage = message.usage_metadata
        assert (usage["output_tokens"], usage["input_token_details"]) == (2, {"cache_read": 16})
        assert usage["total_tokens"] == usage["input_tokens"] + 2
        about = message.response_metadata
        assert (about["model_name"], about["model_provider"], about["finish_reason"]) == (
            "fake",
            "memdecay",
            "stop",
        )
        assert about["memdecay"]["page_size_tokens"] == 16
        assert json.loads(json.dumps(about)) == about
        assert "memdecay" not in message.additional_kwargs
    assert {tuple(ids) for ids, _, _ in fake.requests} == {tuple(fake.requests[0][0])}


def test_the_last_chunk_says_so_and_carries_what_is_said_once(fake: FakeEngine) -> None:
    chunks = list(ChatMemDecay(engine=fake, default_output_region="plan").stream("hi"))
    assert [c.content for c in chunks] == ["Hello", " there", ""]
    assert [c.chunk_position for c in chunks] == [None, None, "last"]
    assert [bool(c.usage_metadata) for c in chunks] == [False, False, True]
    assert merged(chunks).additional_kwargs == {"memdecay": [{"region": "plan", "source": "node"}]}


@pytest.mark.parametrize("pieces", [(CALL,), tuple(CALL), ("Sure.\n", CALL, "\n", CALL)])
def test_tool_calls_are_read_the_same_way_whole_and_streamed(tokenizer: Any, pieces: tuple[str, ...]) -> None:
    model = ChatMemDecay(engine=FakeEngine(tokenizer, *pieces)).bind_tools([add, lookup])
    for message in four_ways(model, "add"):
        assert message.content == ("Sure." if len(pieces) == 4 else "")
        assert [(c["name"], c["args"]) for c in message.tool_calls] == [("add", {"a": 3, "b": 4})] * (
            2 if len(pieces) == 4 else 1
        )
        assert not message.invalid_tool_calls
        assert message.response_metadata["finish_reason"] == "tool_calls"
        assert len({c["id"] for c in message.tool_calls}) == len(message.tool_calls)


def test_a_streamed_call_is_its_name_and_then_its_arguments(tokenizer: Any) -> None:
    model = ChatMemDecay(engine=FakeEngine(tokenizer, *CALL)).bind_tools([add])
    chunks = [chunk.tool_call_chunks for chunk in model.stream("add") if chunk.tool_call_chunks]
    (name,), (arguments,) = chunks
    assert (name["name"], name["args"], name["index"]) == ("add", "", 0)
    assert (arguments["name"], json.loads(arguments["args"]), arguments["index"]) == (None, {"a": 3, "b": 4}, 0)


def test_a_call_that_broke_off_is_invalid_and_not_lost(tokenizer: Any) -> None:
    engine = FakeEngine(
        tokenizer, CALL, "\n", '<tool_call>\n{"name": "lookup", "arguments": {"key": "abc', finish="length"
    )
    model = ChatMemDecay(engine=engine).bind_tools([add, lookup])
    for message in four_ways(model, "go"):
        assert [c["name"] for c in message.tool_calls] == ["add"]
        (broken,) = message.invalid_tool_calls
        assert broken["name"] == "lookup"
        assert broken["args"].endswith('{"key": "abc')
        assert message.response_metadata["finish_reason"] == "length"
        # the next turn's prompt repeats what was generated, to the letter
        ChatMemDecay(engine=engine).invoke([HumanMessage("go"), AIMessage(**message.model_dump(
            include={"content", "tool_calls", "invalid_tool_calls"})), HumanMessage("next")])  # fmt: skip
        assert '{"key": "abc' in engine.prompt
        assert engine.prompt.count("<tool_call>") == 2


def test_without_tools_a_tag_is_text(tokenizer: Any) -> None:
    engine = FakeEngine(tokenizer, CALL)
    assert ChatMemDecay(engine=engine).invoke("hi").content == CALL
    unforced = ChatMemDecay(engine=engine).bind_tools([add], tool_choice="none").invoke("hi")
    assert unforced.content == CALL
    assert not unforced.tool_calls
    assert engine.sampling.structured_outputs is None


def test_a_whole_agent_runs(tokenizer: Any) -> None:
    class Scripted(FakeEngine):
        def submit(self, prompt_token_ids: Any, sampling: Any, hints: Any) -> Any:
            self.pieces = ("It is 7.",) if hints.turn else (CALL,)
            return super().submit(prompt_token_ids, sampling, hints)

    engine = Scripted(tokenizer)
    agent = create_agent(ChatMemDecay(engine=engine), [add], system_prompt="Be brief.", name="adder")
    result = agent.invoke({"messages": "3 + 4?"})
    assert [type(m) for m in result["messages"]] == [HumanMessage, AIMessage, ToolMessage, AIMessage]
    assert result["messages"][2].content == "7"
    assert engine.hints.agent == "adder"
    assert engine.hints.turn == 1
    assert {"system", "user", "tool_in", "tool_out"} <= {span.region for span in engine.hints.spans}
    assert CALL in engine.prompt  # the call that was generated is the call of the next prompt


def test_cancelling_and_leaving_a_stream_abort(fake: FakeEngine) -> None:
    fake.hang = True
    model = ChatMemDecay(engine=fake)

    async def cancelled() -> None:
        task = asyncio.create_task(model.ainvoke("hi"))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def left() -> None:
        stream = model.astream("hi")
        await anext(stream)
        await stream.aclose()

    asyncio.run(cancelled())
    assert len(fake.aborted) == 1
    asyncio.run(left())
    stream = model.stream("hi")
    next(stream)
    stream.close()
    assert len(set(fake.aborted)) == 3


# ---- what reaches the engine


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


def test_forced_calls_belong_to_tool_in_and_are_under_a_grammar(fake: FakeEngine) -> None:
    fake.pieces = (CALL,)
    model = ChatMemDecay(engine=fake, default_output_region="plan")
    model.bind_tools([add, lookup], tool_choice="any").invoke("hi")
    assert fake.hints.output_region == "tool_in"
    forced = json.loads(fake.sampling.structured_outputs.structural_tag)["format"]
    assert len(forced["tags"]) == 2
    assert forced["at_least_one"]
    model.bind_tools([add, lookup], tool_choice="add").invoke("hi")
    (only,) = json.loads(fake.sampling.structured_outputs.structural_tag)["format"]["tags"]
    assert '"add"' in only["begin"]
    assert '"lookup"' in fake.prompt  # shown all the same: the prompt does not change with the choice
    model.bind_tools([add]).invoke("hi")
    assert fake.hints.output_region == "plan"


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(tokenizer: Any, method: Any) -> None:
    values = '{"name": "Ann", "age": 5}'
    call = f'<tool_call>\n{{"name": "Person", "arguments": {values}}}\n</tool_call>'
    text = values if method == "json_schema" else call
    model = ChatMemDecay(engine=FakeEngine(tokenizer, text))
    assert model.with_structured_output(Person, method=method).invoke("Ann, 5") == Person(name="Ann", age=5)
    as_dict = model.with_structured_output(Person.model_json_schema(), method=method)
    assert as_dict.invoke("Ann, 5") == {"name": "Ann", "age": 5}
    assert list(as_dict.stream("Ann, 5"))[-1] == {"name": "Ann", "age": 5}
    short = ChatMemDecay(engine=FakeEngine(tokenizer, text[: text.index("Ann") + 2], finish="length"))
    with pytest.raises(OutputParserException, match="max_tokens"):
        short.with_structured_output(Person, method=method).invoke("Ann, 5")
    raw = short.with_structured_output(Person, method=method, include_raw=True).invoke("Ann, 5")
    assert raw["parsed"] is None
    assert isinstance(raw["parsing_error"], OutputParserException)


def test_an_agent_with_a_response_format_may_call_or_answer(fake: FakeEngine) -> None:
    fake.pieces = ('{"name": "Ann", "age": 5}',)
    agent = create_agent(ChatMemDecay(engine=fake), [add], response_format=Person)
    assert agent.invoke({"messages": "who?"})["structured_response"] == Person(name="Ann", age=5)
    answer = json.loads(fake.sampling.structured_outputs.structural_tag)["format"]
    assert [element["type"] for element in answer["elements"]] == ["tags_with_separator", "grammar"]


# ---- what is refused


def test_a_prompt_that_does_not_fit_is_refused_before_the_engine(fake: FakeEngine) -> None:
    with pytest.raises(ContextOverflowError, match=r"prompt of \d+ tokens.*512 tokens.*Shorten the messages") as caught:
        ChatMemDecay(engine=fake).invoke("word " * 600)
    assert caught.value.code == "context_length"
    with pytest.raises(ContextOverflowError, match="max_tokens=500"):
        ChatMemDecay(engine=fake, max_tokens=500).invoke("hi")
    assert not fake.requests


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        ({"budgett": 3}, ConfigError, "'budgett'.*budget"),
        ({"budget": 0}, ConfigError, "'budget'.*FixedBudget.tokens.*greater than 0"),
        ({"budget": {"kind": "share"}}, ConfigError, "'budget'.*guaranteed_tokens"),
        ({"pin": ["sytem"]}, RegionError, "'sytem'.*system"),
        ({"output_region": "plam"}, RegionError, "'plam'"),
        ({"temperature": -1.0}, ConfigError, "temperature"),
        ({"model": "gpt-x"}, UnsupportedError, "'gpt-x'.*'fake'"),
        ({"tool_choice": "any"}, ConfigError, "no tool is bound"),
        ({"response_format": 3}, ConfigError, "response_format"),
        ({"logprobs": -1}, ConfigError, "logprobs=-1.*negative"),
        ({"logprobs": True, "top_logprobs": -2}, ConfigError, "top_logprobs=-2"),
        ({"reasoning_parser": "quen3"}, ConfigError, "'quen3'.*qwen3"),
    ],
)
def test_bad_keywords(fake: FakeEngine, call: dict[str, Any], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=f"(?s){says}"):
        ChatMemDecay(engine=fake).invoke("hi", **call)
    assert not fake.requests


def test_bad_fields_and_tools(fake: FakeEngine) -> None:
    with pytest.raises(RegionError, match="'sytem'"):
        ChatMemDecay(pin=["sytem"])
    with pytest.raises(BudgetError, match="budgets"):
        ChatMemDecay(budgets={"a": 0})
    with pytest.raises(ConfigError, match="engine_args"):
        ChatMemDecay(engine=fake, engine_args={"dtype": "float32"})
    model = ChatMemDecay(engine=fake)
    with pytest.raises(ConfigError, match=r"'sub' is no bound tool.*'add'"):
        model.bind_tools([add], tool_choice="sub")
    with pytest.raises(ConfigError, match="two tools"):
        model.bind_tools([add, {"name": "add", "description": "Another.", "parameters": {}}])
    assert len(openai_tools([add, add, Person, Person.model_json_schema()])) == 2
    with pytest.raises(ConfigError, match="web_search"):
        model.bind_tools([{"type": "web_search"}])
    with pytest.raises(ConfigError, match="schema"):
        model.with_structured_output(3)  # type: ignore[arg-type]


# ---- what the model says about itself


def test_identity_profile_and_counting(fake: FakeEngine) -> None:
    model = ChatMemDecay(engine=fake, temperature=0.1, stop=["X"])
    assert model._llm_type == "memdecay-chat"
    assert model.profile is not None
    assert model.profile["max_input_tokens"] == 512
    params = model._get_ls_params(model="other", max_tokens=5)
    assert (params["ls_provider"], params["ls_model_name"], params["ls_max_tokens"]) == (
        "memdecay",
        "other",
        5,
    )
    assert model._get_ls_params()["ls_model_name"] == "fake"
    assert model._get_ls_params()["ls_stop"] == ["X"]
    keys = {ChatMemDecay(engine=fake, default_budget=n)._get_llm_string() for n in (None, 64, 128)}
    assert len(keys) == 3  # a cached answer belongs to its budget
    assert model.get_num_tokens("hello world") == len(fake.tokenizer("hello world")["input_ids"])
    messages = [SystemMessage("s"), HumanMessage("hi")]
    plain, tools = (model.get_num_tokens_from_messages(messages, tools=t) for t in (None, [add]))
    model.invoke(messages)
    assert plain == len(fake.requests[-1][0]) < tools


# ---- the real engine


@pytest.mark.engine
def test_the_real_model_chooses_tool_and_arguments_under_the_grammar(engine: Any) -> None:
    model = ChatMemDecay(engine=engine, max_tokens=60)
    messages = [SystemMessage("You use tools."), HumanMessage("Use the tool to add 3 and 4.")]
    chosen = model.bind_tools([add, lookup], tool_choice="any").invoke(messages)
    (call,) = chosen.tool_calls
    assert call["name"] in ("add", "lookup")
    {"add": add, "lookup": lookup}[call["name"]].invoke(call["args"])  # its arguments pass the tool's schema
    assert chosen.response_metadata["finish_reason"] == "tool_calls"
    # the next prompt repeats the first one: its whole pages are in the cache
    after = [*messages, chosen, ToolMessage("7", tool_call_id=call["id"])]
    answer = model.bind_tools([add, lookup]).invoke(after, max_tokens=2)
    first_prompt = chosen.usage_metadata["input_tokens"]
    assert answer.usage_metadata["input_token_details"]["cache_read"] >= first_prompt // 16 * 16
    regions = answer.response_metadata["memdecay"]["tokens_by_region"]
    assert {"system", "user", "tool_in", "tool_out"} <= regions.keys()


@pytest.mark.engine
def test_streaming_equals_generating_and_stop_strings_stop(engine: Any) -> None:
    model = ChatMemDecay(engine=engine, max_tokens=8)
    whole = model.invoke("What is the capital of France?")
    chunks = list(model.stream("What is the capital of France?"))
    assert merged(chunks).content == whole.content
    assert len(chunks) > 2
    assert "Paris" in whole.content
    stopped = model.invoke("What is the capital of France?", stop=[" Paris"])
    assert "Paris" not in stopped.content
    assert stopped.response_metadata["stop_reason"] == " Paris"


MARKED = mark(HumanMessage("Keep what stands here."), [(0, 4, "plan")])
STALE = MARKED.model_copy(update={"content": "Something else stands here now."})
UNKNOWN = HumanMessage("Text.", additional_kwargs={"memdecay": [{"region": "nonsense"}]})


@pytest.mark.parametrize("message", [STALE, UNKNOWN])
def test_tags_that_cannot_be_used_are_inferred_or_refused_where_the_user_wants_that(
    fake: FakeEngine, message: HumanMessage
) -> None:
    with pytest.raises(TagError):
        ChatMemDecay(engine=fake, tag_errors="raise").invoke([message])
    assert fake.requests == []
    reset_warnings()
    with pytest.warns(MemDecayWarning):
        ChatMemDecay(engine=fake).invoke([message])
    assert {span.region for span in fake.hints.spans} <= {"system", "user", "scratchpad"}


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


def test_what_is_known_before_any_engine(model_path: str) -> None:
    profile = ChatMemDecay().profile
    assert profile is not None
    config = json.loads((Path(model_path) / "config.json").read_text())
    assert profile["max_input_tokens"] == config["max_position_embeddings"]
    assert ChatMemDecay(model=model_path).profile["max_input_tokens"] == profile["max_input_tokens"]
    assert ChatMemDecay(engine_args={"max_model_len": 64}).profile["max_input_tokens"] == 64
    assert "max_input_tokens" not in ChatMemDecay(model="nobody/has-this").profile
    assert not profile["reasoning_output"]
    assert ChatMemDecay(reasoning_parser="qwen3").profile["reasoning_output"]
    with pytest.raises(PolicyError, match=r"'memdekay'.*memdecay"):
        ChatMemDecay(config=MemDecayConfig(policy="memdekay"))


@pytest.mark.engine
def test_what_vllm_itself_refuses_is_refused_in_our_words(engine: Any) -> None:
    model = ChatMemDecay(engine=engine, max_tokens=2)
    with pytest.raises(ConfigError, match="logprobs"):
        model.invoke("hi", logprobs=True, top_logprobs=25)
    assert len(model.invoke("hi", logprobs=2).response_metadata["logprobs"]["content"]) == 2
