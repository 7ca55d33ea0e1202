"""vLLM's parsers are imported in the background, or in a thread of the first async call: never on the event loop."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest

import memdecay_adapters.langchain.chat_model as chat_model
import memdecay_adapters.langchain.parser_import as parser_import
import memdecay_adapters.langchain.vllm_parsers as vllm_parsers
from memdecay_adapters.langchain.chat_model import ChatMemDecay
from memdecay_adapters.langchain.parser_import import prepare_parsers
from tests.adapters.fake_engine import FakeEngine


def test_the_thread_leaves_nothing_to_import(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser_import, "_threads", {})
    vllm_parsers._parser_class.cache_clear()
    thread = prepare_parsers(tokenizer, None, "llama3_json", "deepseek_r1")
    assert thread is not None
    assert thread is prepare_parsers(tokenizer, None, "llama3_json", "deepseek_r1")
    thread.join()
    assert vllm_parsers._parser_class.cache_info().currsize == 1
    names = set(sys.modules)
    vllm_parsers.load_parser("llama3_json", "deepseek_r1")
    assert vllm_parsers._parser_class.cache_info().currsize == 1
    assert set(sys.modules) == names, "something was left to import"


def test_native_reading_imports_nothing(tokenizer: Any) -> None:
    thread = prepare_parsers(tokenizer, None, "native", None)
    assert thread is not None
    thread.join()
    assert prepare_parsers(object.__new__(_NoTemplate), None, "native", None) is None


class _NoTemplate:
    def get_chat_template(self, name: Any, tools: Any = None) -> str:
        raise ValueError("none")


def test_the_first_async_request_of_a_kind_is_made_off_the_event_loop(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    build = chat_model.build_request

    def spy(*given: Any, **named: Any) -> Any:
        made.append(threading.get_ident())
        return build(*given, **named)

    monkeypatch.setattr(chat_model, "build_request", spy)
    monkeypatch.setattr(chat_model, "_begun", set())
    model = ChatMemDecay(engine=FakeEngine(tokenizer))

    async def calls() -> None:
        await model.ainvoke("hi")
        await model.ainvoke("hi")
        async for _ in model.astream("hi", response_format={"type": "json_object"}):
            pass

    asyncio.run(calls())
    loop = threading.get_ident()
    assert [ident == loop for ident in made] == [False, True, False]
