"""What comes back from ChatMemDecay, in the four ways to call it, and what it says of itself."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from langchain_core.messages import HumanMessage, SystemMessage

from memdecay_adapters.langchain.chat_model import ChatMemDecay
from memdecay_agents import MemDecayConfig
from memdecay_agents.errors import PolicyError
from tests.adapters.chat_calls import add, four_ways, merged
from tests.adapters.fake_engine import FakeEngine


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
