"""Which tokens of a prompt are which message's: in every template family, and where a template joins messages."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from memdecay_adapters.langchain import build_prompt
from memdecay_adapters.langchain.chat_request import messages_that_fit
from memdecay_agents import MemDecayConfig, RequestHints, Span, SpanFlag
from tests.adapters.families import BOS_EOS, TOOLS, make_family

CONFIG = MemDecayConfig()
FAMILIES = [
    name for name in BOS_EOS if name in ("smollm2", "qwen3", "llama3.1", "gemma", "gpt-oss", "cohere", "mistral-v3")
]
WORDS = ["SYSTEMWORD", "FIRSTWORD", "CALLWORD", "RESULTWORD", "ANSWERWORD", "LASTWORD"]
MESSAGES = [
    SystemMessage("Mind the SYSTEMWORD always."),
    HumanMessage("A question about FIRSTWORD please."),
    AIMessage("", tool_calls=[{"id": "abcdefghi", "name": "search_web", "args": {"query": "CALLWORD"}}]),
    ToolMessage("Found: RESULTWORD in the file.", tool_call_id="abcdefghi", name="search_web"),
    AIMessage("It says ANSWERWORD there."),
    HumanMessage("And LASTWORD?"),
]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_message_stands_in_its_own_tokens_and_in_no_others(name: str, tokenizer: Any) -> None:
    family = make_family(name, tokenizer)
    prompt = build_prompt(MESSAGES, family.tokenizer, tools=TOOLS, config=CONFIG, chat_template=family.source)
    assert len(prompt.message_spans) == len(MESSAGES)
    texts = [family.tokenizer.decode(prompt.token_ids[start:end]) for start, end in prompt.message_spans]
    for number, (word, text) in enumerate(zip(WORDS, texts, strict=True)):
        if word not in prompt.text:
            continue  # the template does not write it at all
        assert word in text
        strangers = {other for other in WORDS if other in text} - {word}
        shared = {WORDS[at] for at, span in enumerate(prompt.message_spans) if span == prompt.message_spans[number]}
        covered = {
            WORDS[at]
            for at, (start, end) in enumerate(prompt.message_spans)
            if prompt.message_spans[number][0] <= start and end <= prompt.message_spans[number][1]
        }
        assert strangers <= shared | covered, "only what the template wrote into this message"
    ends = [end for _, end in prompt.message_spans]
    assert max(ends) <= len(prompt.token_ids)


def test_in_the_small_models_template_messages_are_end_to_end(tokenizer: Any) -> None:
    prompt = build_prompt(MESSAGES, tokenizer, config=CONFIG)
    spans = prompt.message_spans
    assert [end for _, end in spans[:-1]] == [start for start, _ in spans[1:]]
    assert tokenizer.decode(prompt.token_ids[spans[-1][1] :]) == "<|im_start|>assistant\n"
    without = build_prompt(MESSAGES, tokenizer, config=CONFIG, add_generation_prompt=False)
    assert without.message_spans[-1][1] == len(without.token_ids)


def test_a_message_that_is_left_out_has_no_tokens_and_joined_ones_share_theirs(tokenizer: Any) -> None:
    strict = make_family("gemma", tokenizer)
    messages = [HumanMessage("one ALPHA"), HumanMessage("two BETA"), AIMessage("three"), HumanMessage("four")]
    prompt = build_prompt(messages, strict.tokenizer, config=CONFIG, chat_template=strict.source)
    first, second, *_ = prompt.message_spans
    text = strict.tokenizer.decode(prompt.token_ids[first[0] : first[1]])
    assert "ALPHA" in text
    assert ("BETA" in text) == (first == second)


@pytest.mark.parametrize(("names", "messages", "fit"), [(7, 1400, True), (64, 600, False), (30, 900, True)])
def test_hints_hold_the_messages_or_do_without_them(names: int, messages: int, fit: bool) -> None:
    region = "r" * names
    spans = tuple(Span(n, n + 1, region, SpanFlag(n % 2)) for n in range(1_000_000, 1_000_600))
    places = [(n, n + 1) for n in range(1_000_000, 1_000_000 + messages)]
    told = messages_that_fit(spans, places)
    assert bool(told) == fit
    hints = RequestHints(agent="a" * 1024, session="s" * 1024, spans=spans, messages=told)
    assert RequestHints.from_extra_args(hints.to_extra_args()) is not None, "they are never too large for it"
