"""Tool calls and structured output of ChatMemDecay: how they are read, and the grammars that force them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from memdecay_adapters.langchain.chat_model import ChatMemDecay
from tests.adapters.chat_calls import CALL, Person, add, four_ways, lookup
from tests.adapters.fake_engine import FakeEngine

# ---- calls that the model makes


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


# ---- what is under a grammar


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
