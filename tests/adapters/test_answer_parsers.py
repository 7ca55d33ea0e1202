"""What a chat template writes is what its parser reads and its grammar takes; and reading loses no reasoning."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage

from memdecay_adapters.langchain.answer_format import answer_format, chosen_format
from memdecay_adapters.langchain.answer_reader import Answer, collect
from memdecay_adapters.langchain.parser_choice import AUTO, NATIVE, Parsers, choose_parsers
from memdecay_adapters.langchain.prompt import build_prompt, chat_template_of
from memdecay_adapters.langchain.think_reader import Reasoning, ThinkReader
from memdecay_adapters.langchain.tool_choice import check_tool_choice
from memdecay_adapters.langchain.vllm_parsers import VllmReader
from memdecay_adapters.langchain.warn import MemDecayWarning, reset_warnings
from memdecay_agents import MemDecayConfig
from memdecay_agents.errors import ConfigError, UnsupportedError
from tests.adapters.families import TOOLS, Family, make_family, template_source

NAMES = [tool["function"]["name"] for tool in TOOLS]
CHOSEN = {
    "smollm2": Parsers(NATIVE, None),
    "qwen2.5": Parsers(NATIVE, None),
    "qwen3": Parsers(NATIVE, NATIVE),
    "qwen3.5": Parsers("qwen3_xml", "qwen3"),
    "llama3": Parsers(NATIVE, None),
    "llama3.1": Parsers("llama3_json", None),
    "glm4moe": Parsers("glm45", "glm45"),
    "deepseek-v3": Parsers("deepseek_v3", "deepseek_r1"),
    "gpt-oss": Parsers("openai", "openai_gptoss"),
    "lfm2": Parsers("lfm2", None),
    "gemma": Parsers(NATIVE, None),
    "phi3.5": Parsers(NATIVE, None),
}
READ = [name for name in CHOSEN if name not in ("gpt-oss",)]  # its reader wants the family's own token ids
PARSERS = "parsers of vLLM (and ours) read the calls and the reasoning that templates write: " + ", ".join(READ)


@pytest.fixture(scope="module")
def families(tokenizer: Any) -> dict[str, Family]:
    spec = importlib.util.find_spec("trl")  # found without importing it
    assert spec is not None
    assert spec.submodule_search_locations
    found = {name: make_family(name, tokenizer) for name in CHOSEN if name != "qwen3.5"}
    source = (Path(spec.submodule_search_locations[0]) / "chat_templates" / "qwen3_5_think.jinja").read_text(
        encoding="utf-8"
    )
    return {**found, "qwen3.5": make_family("qwen3", tokenizer, source)}


@pytest.mark.parametrize("name", CHOSEN)
def test_the_template_tells_the_parsers(families: dict[str, Family], name: str) -> None:
    template = chat_template_of(families[name].tokenizer)
    assert choose_parsers(template, AUTO, AUTO) == CHOSEN[name]
    assert choose_parsers(template, "mistral", None) == Parsers("mistral", None)


def written(family: Family, answer: AIMessage) -> tuple[str, str]:
    """The prompt, and the answer to it as the template writes it in the next prompt."""
    config, question = MemDecayConfig(), HumanMessage("Look it up.")
    prompt = build_prompt([question], family.tokenizer, tools=TOOLS, config=config).text
    both = build_prompt(
        [question, answer], family.tokenizer, tools=TOOLS, config=config, add_generation_prompt=False
    ).text
    if not both.startswith(prompt):  # DeepSeek's prompt opens <think>, its history leaves reasoning out
        text = "hm, cats.\n</think>\n\n" + both.removeprefix(prompt.removesuffix("<think>\n"))
    else:
        text = both.removeprefix(prompt)
    for end in (family.tokenizer.eos_token, "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>"):
        text = text.partition(end)[0].rstrip("\n")
    return prompt, text


def read(format: Any, family: Family, prompt: str, answer: str) -> Answer:
    """Read an answer token by token, as the engine's detokenizer would give it."""
    prompt_ids, ids = (family.tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, answer))
    reader = format.reader(prompt_ids)
    pieces, shown = [], ""
    for end in range(1, len(ids) + 1):
        text = family.tokenizer.decode(ids[:end], skip_special_tokens=False)
        if not text.endswith("\ufffd"):
            pieces += reader.feed(text[len(shown) :], [ids[end - 1]])
            shown = text
    return collect([*pieces, *reader.finish("stop")])


def format_for(family: Family, choice: Any, **more: Any) -> Any:
    parsers = choose_parsers(chat_template_of(family.tokenizer), AUTO, AUTO)
    checked = check_tool_choice(choice, NAMES)
    return answer_format(parsers, family.tokenizer, tools=TOOLS, choice=checked, **{"response_format": None, **more})


ARGUMENTS = [{"query": "cats", "limit": 3}, {"query": 'Grüße, "東京" 🙂 <b>'}]


@pytest.mark.tried(PARSERS, "vllm-cpu")
@pytest.mark.parametrize("choice", ["auto", "any", "search_web"])
@pytest.mark.parametrize("name", READ)
def test_the_parser_reads_the_call_that_the_template_writes(
    families: dict[str, Family], name: str, choice: str
) -> None:
    if name == "lfm2" and choice != "auto":
        pytest.skip("vLLM forces this family's calls in JSON, not in its own syntax")
    for arguments in ARGUMENTS:
        call = {"name": "search_web", "args": arguments, "id": "abcdefghi"}
        prompt, text = written(families[name], AIMessage("", tool_calls=[call]))
        answer = read(format_for(families[name], choice), families[name], prompt, text)
        assert [(c.name, c.arguments) for c in answer.calls] == [("search_web", arguments)]
        assert not answer.text.strip()
        assert answer.reasoning.strip() == ("hm, cats." if name == "deepseek-v3" else "")


@pytest.mark.tried(PARSERS, "vllm-cpu")
@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "glm4moe"])
def test_the_parser_reads_the_reasoning_that_the_template_writes(families: dict[str, Family], name: str) -> None:
    call = {"name": "search_web", "args": {"query": "cats"}, "id": "abcdefghi"}
    for calls, content in (([call], ""), ([], "Cats purr.")):
        message = AIMessage(content, tool_calls=calls, additional_kwargs={"reasoning_content": "Cats?\n\nLook."})
        prompt, text = written(families[name], message)
        answer = read(format_for(families[name], "auto"), families[name], prompt, text)
        assert answer.reasoning.strip() == "Cats?\n\nLook."
        assert answer.text.strip() == content
        assert [c.name for c in answer.calls] == [c["name"] for c in calls]


@pytest.mark.parametrize("name", ["llama3.1", "qwen3.5", "glm4moe"])
def test_forced_calls_are_under_a_grammar_of_the_family(families: dict[str, Family], name: str) -> None:
    import xgrammar

    family = families[name]
    grammar = format_for(family, "search_web").grammar
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo.from_huggingface(family.tokenizer))
    compiled = compiler.compile_structural_tag(grammar)

    def accepts(text: str) -> bool:
        matcher = xgrammar.GrammarMatcher(compiled)
        return bool(matcher.accept_string(text)) and bool(matcher.is_completed())

    def call_of(tool: str, arguments: dict[str, Any]) -> str:
        message = AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": "abcdefghi"}])
        text = written(family, message)[1]
        for before in ("\n<think></think>\n", "\n</think>\n\n"):
            text = text.removeprefix(before)
        return text

    assert accepts(call_of("search_web", {"query": "cats"}))
    assert not accepts(call_of("read_file", {"query": "cats"}))
    assert not accepts(call_of("search_web", {"limit": 3}))
    assert not accepts("free text")


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "glm4moe"])
@pytest.mark.parametrize("opened", [False, True])
def test_a_forced_answer_may_follow_reasoning(families: dict[str, Family], name: str, opened: bool) -> None:
    import xgrammar

    family = families[name]
    prompt = "<|im_start|>assistant\n" + "<think>\n" * opened
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo.from_huggingface(family.tokenizer))
    call = {"name": "search_web", "args": {"query": "cats"}, "id": "abcdefghi"}
    bare = written(family, AIMessage("", tool_calls=[call]))[1]
    bare = (
        bare.removeprefix("\n<think></think>\n").removeprefix("\n</think>\n\n").removeprefix("<think>\n\n</think>\n\n")
    )
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    as_json = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for answer, choice, response_format in ((bare, "any", None), ('{"n": 3}', "none", as_json)):
        format = format_for(family, choice, response_format=response_format, prompt_text=prompt, thinks=True)
        compiled = compiler.compile_structural_tag(format.grammar)

        def accepts(text: str, compiled: Any = compiled) -> bool:
            matcher = xgrammar.GrammarMatcher(compiled)
            return bool(matcher.accept_string(text)) and bool(matcher.is_completed())

        thought = "" if opened else "<think>"
        assert accepts(f"{thought}\nCats?\n</think>\n\n{answer}")
        assert accepts(answer) is (not opened)
        assert not accepts(f"{thought}\nCats?\n</think>\n\nfree text")
        found = read(format, family, prompt, f"{thought}\nCats?\n</think>\n\n{answer}")
        assert found.reasoning.strip() == "Cats?"
        assert [c.arguments for c in found.calls] == ([{"query": "cats"}] if choice == "any" else [])
        assert found.text.strip() == ("" if choice == "any" else answer)


def test_a_call_that_breaks_off_in_a_vllm_parser_stays_invalid(families: dict[str, Family]) -> None:
    family = families["llama3.1"]
    format = format_for(family, "auto")
    reader = format.reader([])
    pieces = []
    for token_id in family.tokenizer('{"name": "search_web", "parameters": {"query": "ca')["input_ids"]:
        pieces += reader.feed(family.tokenizer.decode([token_id]), [token_id])
    answer = collect([*pieces, *reader.finish("length")])
    assert not any(call.valid for call in answer.calls)
    assert "ca" in answer.text + "".join(call.raw for call in answer.calls)


def test_a_parser_that_fails_while_reading_leaves_the_text() -> None:
    class Failing:
        def parse_delta(self, text: str, *_: Any, finished: bool) -> Any:
            if text == "b":
                raise IndexError("no such token")
            return DeltaMessage(content=text)

        def count_reasoning_tokens(self, token_ids: list[int]) -> int:
            return 0

    from vllm.entrypoints.generate.base.protocol import DeltaMessage

    reader = VllmReader(Failing(), None, [1])
    reset_warnings()
    with pytest.warns(MemDecayWarning, match="no such token"):
        pieces = [piece for text in "abc" for piece in reader.feed(text, [0])]
    assert collect([*pieces, *reader.finish("stop")]).text == "abc"


def test_calls_that_no_grammar_can_force_are_refused(tokenizer: Any) -> None:
    choice = check_tool_choice("any", NAMES)
    with pytest.raises(UnsupportedError, match="tool_choice='auto'"):
        answer_format(Parsers("gemma4", None), tokenizer, tools=TOOLS, choice=choice, response_format=None)


def test_names_that_vllm_does_not_know_and_tokenizers_that_do_not_fit(tokenizer: Any) -> None:
    choice = check_tool_choice("auto", NAMES)
    for parsers, says in (
        (Parsers("lama3_json", None), r"tool_parser='lama3_json'.*llama3_json"),
        (Parsers(NATIVE, "quen3"), r"reasoning_parser='quen3'.*qwen3"),
        (Parsers("llama3_json", None), r"python_tag"),
    ):
        with pytest.raises(ConfigError, match=f"(?s){says}"):
            answer_format(parsers, tokenizer, tools=TOOLS, choice=choice, response_format=None)


def test_a_parser_that_nobody_named_gives_way_where_it_does_not_fit(tokenizer: Any) -> None:
    template = chat_template_of(tokenizer, template_source("llama3.1", tokenizer))  # the tokenizer lacks the tag
    asked = {"tools": TOOLS, "choice": check_tool_choice("any", NAMES), "response_format": None}
    reset_warnings()
    with pytest.warns(MemDecayWarning, match=r"natively.*python_tag"):
        format = chosen_format(template, tokenizer, tool_parser=AUTO, reasoning_parser=AUTO, **asked)
    assert format.parsers == Parsers(NATIVE, None)
    with pytest.raises(ConfigError, match="python_tag"):
        chosen_format(template, tokenizer, tool_parser="llama3_json", reasoning_parser=AUTO, **asked)
    broken = {**asked, "tools": [{"function": {"name": "search_web", "parameters": {"$ref": "#/$defs/gone"}}}]}
    with pytest.raises(ConfigError, match="search_web"):
        chosen_format(template, tokenizer, tool_parser=AUTO, reasoning_parser=AUTO, **broken)


def test_an_unknown_syntax_is_native_with_a_warning(tokenizer: Any) -> None:
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% for c in m.tool_calls or [] %}CALL {{ c.function.name }} WITH {{ c.function.arguments | tojson }}"
        "{% endfor %}<|im_end|>\n{% endfor %}"
    )
    reset_warnings()
    with pytest.warns(MemDecayWarning, match="tool_parser"):
        assert choose_parsers(chat_template_of(tokenizer, source), AUTO, AUTO) == Parsers(NATIVE, None)


thoughts = st.lists(st.sampled_from(["<think>", "</think>", "\n", " ", "why", "<", "</thi", "so"]), max_size=8)


@settings(max_examples=300, deadline=None)
@given(parts=thoughts, opened=st.booleans(), data=st.data())
def test_thinking_does_not_depend_on_how_the_text_was_cut(parts: list[str], opened: bool, data: st.DataObject) -> None:
    text = "".join(parts)

    def joined(found: list[Any]) -> tuple[str, str]:
        answer = collect(found)
        return answer.reasoning, answer.text

    whole = ThinkReader(True, opened)
    expected = joined([*whole.feed(text), *whole.finish()])
    reader, found, position = ThinkReader(True, opened), [], 0
    while position < len(text):
        size = data.draw(st.integers(1, 5))
        found += reader.feed(text[position : position + size])
        position += size
    assert joined([*found, *reader.finish()]) == expected
    kept = "".join(expected).replace("<think>", "").replace("</think>", "")
    assert "".join(kept.split()) == "".join(text.replace("<think>", "").replace("</think>", "").split())


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "rest"),
    [
        ("<think>\nWhy?\n</think>\n\nSo.", False, "Why?", "So."),
        ("Why?\n</think>\n\nSo.", True, "Why?", "So."),
        ("<think>\n\n</think>\n\nSo.", False, "", "So."),
        ("So. <think>no</think>", False, "", "So. <think>no</think>"),
        ("<think>\nbroke off", False, "broke off", ""),
        ("<thin", False, "", "<thin"),
    ],
)
def test_think_blocks(text: str, opened: bool, reasoning: str, rest: str) -> None:
    reader = ThinkReader(True, opened)
    found = [piece for char in text for piece in reader.feed(char)]
    answer = collect([*found, *reader.finish()])
    assert (answer.reasoning, answer.text) == (reasoning, rest)
    assert ThinkReader(False).feed(text) == [text]
    assert Reasoning("x") != "x"
