"""``build_prompt``: what a chat model gets, with the real tokenizer; and what happens when tracking fails."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from memdecay_adapters.langchain import MemDecayWarning, build_prompt, fallback_count, mark, tag
from memdecay_adapters.langchain.prompt import TaggedPrompt, chat_template_of, template_conversation
from memdecay_adapters.langchain.regions import Label
from memdecay_adapters.langchain.templates.resolve import Stretch
from memdecay_adapters.langchain.tokens import tokenise
from memdecay_adapters.langchain.warn import reset_warnings
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import RegionError, TagError, UnsupportedError
from memdecay_agents.spans import SpanFlag, check_partition
from tests.adapters.families import TOOLS, make_family

CONFIG = MemDecayConfig()


@pytest.fixture(autouse=True)
def _fresh_warnings() -> Iterator[None]:
    reset_warnings()
    yield
    reset_warnings()


def pieces(tokenizer: Any, prompt: TaggedPrompt) -> list[tuple[str, str]]:
    check_partition(prompt.spans, 0, len(prompt.token_ids), CONFIG.region_names)
    return [(tokenizer.decode(prompt.token_ids[s.start : s.end]), s.region) for s in prompt.spans]


def test_a_conversation_in_the_small_models_template(tokenizer: Any) -> None:
    messages = [
        SystemMessage("Be brief."),
        HumanMessage([tag("Manual: pull the lever.", "retrieval"), " How?"]),
        mark(AIMessage("Pull it."), "plan"),
    ]
    prompt = build_prompt(messages, tokenizer, config=CONFIG, default_output_region="plan")
    assert prompt.exact
    assert pieces(tokenizer, prompt) == [
        ("<|im_start|>system\nBe brief.<|im_end|>\n", "system"),
        ("<|im_start|>user\n", "user"),
        ("Manual: pull the lever.", "retrieval"),
        (" How?<|im_end|>\n", "user"),
        ("<|im_start|>assistant\nPull it.<|im_end|>\n<|im_start|>assistant\n", "plan"),
    ]
    assert prompt.region_tokens["plan"] == sum(s.end - s.start for s in prompt.spans if s.region == "plan")


def test_the_templates_default_system_text_is_system_and_stays_when_tools_are_announced(tokenizer: Any) -> None:
    plain = build_prompt([HumanMessage("Hi")], tokenizer, config=CONFIG)
    with_tools = build_prompt([HumanMessage("Hi")], tokenizer, tools=TOOLS, config=CONFIG)
    default = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    for prompt in (plain, with_tools):
        text, region = pieces(tokenizer, prompt)[0]
        assert region == "system"
        assert default in text
    assert '"name": "search_web"' in with_tools.text
    assert with_tools.text.count("<|im_start|>system") == 1
    own = build_prompt([SystemMessage("Mine."), HumanMessage("Hi")], tokenizer, tools=TOOLS, config=CONFIG)
    assert "<|im_start|>system\nMine.\n\n# Tools" in own.text
    assert default not in own.text


def test_tool_calls_of_templates_without_them_are_text(tokenizer: Any) -> None:
    call = {"name": "search_web", "args": {"query": 'é "x"', "limit": 2}, "id": "1"}
    messages = [HumanMessage("Go"), AIMessage("Now.", tool_calls=[call]), ToolMessage("ok", tool_call_id="1")]
    prompt = build_prompt(messages, tokenizer, tools=TOOLS, config=CONFIG, add_generation_prompt=False)
    written = '\n<tool_call>\n{"name": "search_web", "arguments": {"query": "é \\"x\\"", "limit": 2}}\n</tool_call>'
    found = {region: text for text, region in pieces(tokenizer, prompt)}
    assert found["tool_in"] == written
    assert found["tool_out"] == "<|im_start|>tool\nok<|im_end|>\n"
    assert "Now." in prompt.text


def test_broken_tool_calls_are_not_lost(tokenizer: Any) -> None:
    broken = {"name": "t", "args": '{"a": ', "id": "1", "error": "bad", "type": "invalid_tool_call"}
    prompt = build_prompt([HumanMessage("Go"), AIMessage("", invalid_tool_calls=[broken])], tokenizer, config=CONFIG)
    assert ('<tool_call>\n{"a": \n</tool_call>', "tool_in") in pieces(tokenizer, prompt)


def test_gemma_gets_system_text_and_results_in_user_messages(tokenizer: Any) -> None:
    family = make_family("gemma", tokenizer)
    call = {"name": "search_web", "args": {"query": "x"}, "id": "1"}
    messages = [
        SystemMessage("Rule one."), HumanMessage("Go."), AIMessage("", tool_calls=[call]),
        ToolMessage("Result.", tool_call_id="1"), HumanMessage("And?"), AIMessage("So."),
    ]  # fmt: skip
    prompt = build_prompt(messages, family.tokenizer, config=CONFIG, add_generation_prompt=False)
    assert prompt.exact
    assert prompt.text.count("<start_of_turn>") == 4
    found = pieces(family.tokenizer, prompt)
    assert ("Rule one.\n\n", "system") in found
    assert any(region == "tool_out" and "<tool_response>\nResult.\n</tool_response>" in text for text, region in found)
    assert any(region == "user" and "And?" in text for text, region in found)


STRICT_IDS = """{% for m in messages %}<{{ m.role }}>{% if m.tool_calls %}{% for c in m.tool_calls %}
{% if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}
CALL {{ c.function | tojson }} {{ c.id }}{% endfor %}{% elif m.role == 'tool' %}
{% if m.tool_call_id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}
{{ m.tool_call_id }} {{ m.content }}{% else %}{{ m.content }}{% endif %}
{% endfor %}"""


def test_a_template_that_wants_nine_character_ids_gets_them(tokenizer: Any) -> None:
    family = make_family("strict-ids", tokenizer, STRICT_IDS)
    call = {"name": "search_web", "args": {"query": "x"}, "id": "call_a_long_one"}
    messages = [HumanMessage("Go."), AIMessage("", tool_calls=[call]), ToolMessage("R", tool_call_id="call_a_long_one")]
    template = chat_template_of(family.tokenizer)
    converted = template_conversation(messages, template, None, CONFIG).plain_messages
    assert converted[1]["tool_calls"][0]["id"] == converted[2]["tool_call_id"]
    assert len(converted[2]["tool_call_id"]) == 9
    assert build_prompt(messages, family.tokenizer, config=CONFIG).exact


def test_pinned_tags_reach_the_spans(tokenizer: Any) -> None:
    messages = [mark(HumanMessage("Keep this."), "user", pinned=True), HumanMessage("Not this.")]
    prompt = build_prompt(messages, tokenizer, config=CONFIG)
    pinned = [s for s in prompt.spans if s.flags == SpanFlag.PINNED]
    assert len(pinned) == 1
    text = tokenizer.decode(prompt.token_ids[pinned[0].start : pinned[0].end])
    assert text == "<|im_start|>user\nKeep this.<|im_end|>\n"


@pytest.mark.parametrize(
    ("left", "right", "winner"),
    [("scratchpad", "system", "system"), ("system", "scratchpad", "system"), ("tool_in", "user", "user")],
)
def test_a_token_of_two_regions_goes_to_the_more_protected(tokenizer: Any, left: str, right: str, winner: str) -> None:
    word = " information"
    assert len(tokenizer(word, add_special_tokens=False)["input_ids"]) == 1
    stretches = [Stretch(0, 4, Label(left)), Stretch(4, len(word), Label(right))]
    assert [s.region for s in tokenise(tokenizer, word, stretches, CONFIG).spans] == [winner]
    pinned = [Stretch(0, 4, Label("tool_in", SpanFlag.PINNED)), Stretch(4, len(word), Label("user"))]
    assert [s.region for s in tokenise(tokenizer, word, pinned, CONFIG).spans] == ["tool_in"]


def test_characters_of_several_tokens(tokenizer: Any) -> None:
    text = "a\U0001f642\U0001f3fdb"
    stretches = [Stretch(0, 2, Label("user")), Stretch(2, 4, Label("tool_out"))]
    spans = tokenise(tokenizer, text, stretches, CONFIG).spans
    assert [span.region for span in spans] == ["user", "tool_out"]
    check_partition(spans, 0, len(tokenizer(text, add_special_tokens=False)["input_ids"]), CONFIG.region_names)


# What defeats the tracking -------------------------------------------------------------------------------------

MESSAGES: list[BaseMessage] = [
    SystemMessage("First rule here."),
    HumanMessage("Second question here."),
    AIMessage("ok"),
]


def differing(tokenizer: Any) -> tuple[Any, str]:
    """A tokenizer whose own render differs from its template, as overridden ones do."""
    own = copy.deepcopy(tokenizer)
    real = own.apply_chat_template
    own.apply_chat_template = lambda *args, **kwargs: "~" + real(*args, **kwargs)
    return own, own.chat_template


def test_a_mismatch_falls_back_warns_once_and_counts(tokenizer: Any) -> None:
    own, _ = differing(tokenizer)
    before = fallback_count()
    with pytest.warns(MemDecayWarning, match=r"template [0-9a-f]{8}.*another text") as seen:
        first, _ = (build_prompt(MESSAGES, own, config=CONFIG) for _ in range(2))
    assert len(seen) == 1
    assert fallback_count() == before + 2
    assert not first.exact
    assert first.text.startswith("~<|im_start|>")
    assert first.token_ids == tokenizer(first.text, add_special_tokens=False)["input_ids"]
    found = pieces(tokenizer, first)
    assert any("First rule here." in text and region == "system" for text, region in found)
    assert any("Second question here." in text and region == "user" for text, region in found)
    assert found[-1][1] == "scratchpad"


def test_a_failing_render_falls_back(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> str:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("memdecay_adapters.langchain.templates.render.ChatTemplate.tracked", fail)
    with pytest.warns(MemDecayWarning, match="out of luck"):
        prompt = build_prompt(MESSAGES, tokenizer, config=CONFIG)
    assert prompt.fallback_reason
    assert {"system", "user", "scratchpad"} <= set(prompt.region_tokens)


def test_the_fallback_finds_escaped_contents_and_calls(tokenizer: Any) -> None:
    family = make_family("llama3.1", tokenizer)
    own, _ = differing(family.tokenizer)
    call = {"name": "search_web", "args": {"query": "where is it"}, "id": "1"}
    messages = [
        HumanMessage("Find it please."), AIMessage("", tool_calls=[call]),
        ToolMessage('line "one"\nline two', tool_call_id="1"), HumanMessage("And where now?"),
    ]  # fmt: skip
    with pytest.warns(MemDecayWarning):
        found = pieces(own, build_prompt(messages, own, config=CONFIG))
    for word, region in (("Find it", "user"), ("where is it", "tool_in"), ("line two", "tool_out"), ("now?", "user")):
        assert any(word in text and found_region == region for text, found_region in found), found


def test_a_tokenizer_without_offsets_is_approximate_and_says_so_once(tokenizer: Any) -> None:
    class Slow:
        is_fast = False
        name_or_path = "slow"
        special_tokens_map = tokenizer.special_tokens_map
        chat_template = tokenizer.chat_template
        get_chat_template = staticmethod(tokenizer.get_chat_template)
        apply_chat_template = staticmethod(tokenizer.apply_chat_template)
        decode = staticmethod(tokenizer.decode)

        def __call__(self, text: str, **options: Any) -> Any:
            return tokenizer(text, **options)

    before, fast = fallback_count(), build_prompt(MESSAGES, tokenizer, config=CONFIG)
    with pytest.warns(MemDecayWarning, match=r"slow \(template [0-9a-f]{8}\).*no character offsets") as seen:
        slow, _ = (build_prompt(MESSAGES, Slow(), config=CONFIG) for _ in range(2))
    assert len(seen) == 1
    assert fallback_count() == before + 2
    assert slow.token_ids == fast.token_ids
    assert not slow.exact
    assert slow.spans == fast.spans


# Errors --------------------------------------------------------------------------------------------------------


def test_bad_input_is_refused_with_a_reason(tokenizer: Any) -> None:
    with pytest.raises(UnsupportedError, match="no messages"):
        build_prompt([], tokenizer, config=CONFIG)
    with pytest.raises(RegionError, match="nowhere"):
        build_prompt(MESSAGES, tokenizer, config=CONFIG, default_output_region="nowhere")
    with pytest.raises(UnsupportedError, match="image"):
        build_prompt([HumanMessage([{"type": "image", "url": "x"}])], tokenizer, config=CONFIG)
    with pytest.raises(UnsupportedError, match="RemoveMessage"):
        build_prompt([RemoveMessage(id="1")], tokenizer, config=CONFIG)
    bare = copy.deepcopy(tokenizer)
    bare.chat_template = None
    with pytest.raises(UnsupportedError, match="no chat template"):
        build_prompt(MESSAGES, bare, config=CONFIG)
    refusing = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(UnsupportedError, match="roles must alternate"):
        build_prompt(MESSAGES, tokenizer, config=CONFIG, chat_template=refusing)


def test_unusable_tags_end_no_run_unless_asked(tokenizer: Any) -> None:
    message = HumanMessage("x", additional_kwargs={"memdecay": [{"region": "nowhere"}]})
    with pytest.warns(MemDecayWarning, match="nowhere"):
        assert "user" in build_prompt([message], tokenizer, config=CONFIG).region_tokens
    with pytest.raises(TagError, match="nowhere"):
        build_prompt([message], tokenizer, config=CONFIG, tag_errors="raise")
    own = MemDecayConfig(regions={"nowhere": {"base_priority": 0.5}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "nowhere" in build_prompt([message], tokenizer, config=own).region_tokens


def test_template_options_reach_the_template(tokenizer: Any) -> None:
    family = make_family("qwen3", tokenizer)
    options = {"enable_thinking": False}
    prompt = build_prompt(
        [HumanMessage("Hi")], family.tokenizer, config=CONFIG, template_options=options, default_output_region="plan"
    )
    assert prompt.exact
    assert pieces(family.tokenizer, prompt)[-1] == ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "plan")


def test_a_long_conversation_is_tokenised_once_and_rendered_plainly_once(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = make_family("qwen2.5", tokenizer)
    messages: list[BaseMessage] = [SystemMessage("You are helpful. " * 20)]
    for n in range(40):
        call = {"name": "search_web", "args": {"query": f"item {n}", "limit": 3}, "id": f"call{n}"}
        messages += [
            HumanMessage(f"Please find the price of item {n}."),
            AIMessage("I will look that up now.", tool_calls=[call]),
            ToolMessage(f"row {n}: price {n * 7}, shelf B{n}. " * 4, tool_call_id=f"call{n}"),
        ]
    build_prompt(messages[:2], family.tokenizer, tools=TOOLS, config=CONFIG)  # the template is compiled and probed
    counts = {"__call__": 0, "apply_chat_template": 0}
    for name in counts:
        original = getattr(type(family.tokenizer), name)

        def counted(self: Any, *args: Any, _name: str = name, _original: Any = original, **kwargs: Any) -> Any:
            counts[_name] += 1
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(type(family.tokenizer), name, counted)
    assert build_prompt(messages, family.tokenizer, tools=TOOLS, config=CONFIG).exact
    assert counts == {"__call__": 1, "apply_chat_template": 1}
