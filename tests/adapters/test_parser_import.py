"""vLLM's parsers are imported in the background, or in a thread of the first async call: never on the event loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest

import memdecay_adapters.langchain.chat_model as chat_model
from memdecay_adapters.langchain.chat_model import ChatMemDecay
from memdecay_adapters.langchain.parser_import import prepare_parsers
from tests.adapters.fake_engine import FakeEngine

PROGRAM = """
import sys
from memdecay_adapters.langchain.parser_import import prepare_parsers

class Tokenizer:
    name_or_path = "none"
    special_tokens_map = {}
    def get_chat_template(self, name, tools=None):
        return "{{ messages }}"

assert "vllm.parser" not in sys.modules
thread = prepare_parsers(Tokenizer(), None, "llama3_json", "deepseek_r1")
assert thread is prepare_parsers(Tokenizer(), None, "llama3_json", "deepseek_r1")
thread.join()
from memdecay_adapters.langchain.vllm_parsers import _parser_class
assert _parser_class.cache_info().currsize == 1
names = set(sys.modules)
from memdecay_adapters.langchain.vllm_parsers import load_parser
load_parser("llama3_json", "deepseek_r1")
assert set(sys.modules) == names, "something was left to import"
print("loaded")
"""


def test_the_thread_leaves_nothing_to_import() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("loaded"), done.stderr[-2000:]


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
