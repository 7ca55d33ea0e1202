"""ChatMemDecay on the real engine: calls under a grammar, streaming, stop strings, log probabilities."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage

from memdecay_adapters.langchain.chat_model import ChatMemDecay
from memdecay_agents import SessionExplanation
from memdecay_agents.errors import ConfigError
from tests.adapters.chat_calls import add, four_ways, lookup, merged


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


@pytest.mark.engine
def test_what_vllm_itself_refuses_is_refused_in_our_words(engine: Any) -> None:
    model = ChatMemDecay(engine=engine, max_tokens=2)
    with pytest.raises(ConfigError, match="logprobs"):
        model.invoke("hi", logprobs=True, top_logprobs=25)
    assert len(model.invoke("hi", logprobs=2).response_metadata["logprobs"]["content"]) == 2


@pytest.mark.engine
def test_an_answer_carries_the_explanation_of_its_session_where_it_is_wanted(engine_house: Any) -> None:
    engine = engine_house.get("chat")
    model = ChatMemDecay(engine=engine, explain=True, max_tokens=4)
    text = " ".join(f"Item {number} lies on shelf {number * 7}." for number in range(60))
    for way, message in enumerate(four_ways(model, text, thread_id="explained", budget=256)):
        about = json.loads(json.dumps(message.response_metadata["memdecay"]))
        told = SessionExplanation.model_validate(about["explanation"])
        assert told.session == about["session"], way
        freed = [page for page in told.pages if page.state == "freed"]
        held = [page for page in told.pages if page.state == "held"]
        assert len(held) == about["pages_held"]
        assert len(freed) == about["pages_total"] - about["pages_held"] > 0
        assert all(page.parts and page.freed and page.kept_by for page in freed)
        assert all(page.score == pytest.approx(sum(page.parts.values()), abs=1e-4) for page in freed)
        last = message
    assert told == engine.explain(last.response_metadata["memdecay"]["session"])
    plain = ChatMemDecay(engine=engine, max_tokens=2).invoke("hi", thread_id="plain")
    assert "explanation" not in plain.response_metadata["memdecay"]
    engine.close_sessions()


@pytest.mark.engine
def test_a_call_without_a_thread_explains_what_the_ledger_knows_of_it(engine: Any) -> None:
    message = ChatMemDecay(engine=engine, explain=True, max_tokens=2).invoke("hi")
    told = message.response_metadata["memdecay"]["explanation"]
    assert told is None or not [page for page in told["pages"] if page["state"] == "held"]
