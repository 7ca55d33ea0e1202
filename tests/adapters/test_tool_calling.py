"""Tool calls: the grammar accepts exactly what the prompt writes, and reading loses nothing, however it streams."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from memdecay_adapters.langchain.tool_choice import ToolChoice, check_tool_choice, openai_tools, tool_schemas
from memdecay_adapters.langchain.tool_grammar import answer_grammar
from memdecay_adapters.langchain.tool_parsing import CallStart, ParsedCall, ToolCallReader, read_all
from memdecay_adapters.langchain.tool_text import call_text
from memdecay_agents.errors import ConfigError


class Filter(BaseModel):
    """One condition."""

    column: str
    limit: int | None = None


class Query(BaseModel):
    """Ask the database."""

    table: Literal["users", "orders"]
    filters: list[Filter] = Field(default_factory=list)
    exact: bool = True


class Note(BaseModel):
    """Write a note."""

    text: str


TOOLS = tool_schemas(openai_tools([Query, Note]))
NAMES = [tool.name for tool in TOOLS]

queries = st.builds(
    Query,
    table=st.sampled_from(["users", "orders"]),
    filters=st.lists(st.builds(Filter, column=st.text(max_size=5), limit=st.none() | st.integers(-5, 5)), max_size=2),
    exact=st.booleans(),
)
calls = st.one_of(
    queries.map(lambda q: call_text("Query", q.model_dump())),
    st.text(max_size=12).map(lambda t: call_text("Note", {"text": t})),
)


@pytest.fixture(scope="module")
def accepts(tokenizer: Any) -> Any:
    """Whether a grammar takes a text as a whole answer, in xgrammar itself."""
    import xgrammar

    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer)
    compiler = xgrammar.GrammarCompiler(info)

    def check(grammar: str, text: str) -> bool:
        matcher = xgrammar.GrammarMatcher(compiler.compile_structural_tag(grammar))
        return bool(matcher.accept_string(text)) and bool(matcher.is_completed())

    return check


@settings(max_examples=60, deadline=None)
@given(found=st.lists(calls, min_size=1, max_size=2), prose=st.sampled_from(["", "Let me see.", "x < y"]))
def test_the_grammar_takes_what_the_next_prompt_will_write(accepts: Any, found: list[str], prose: str) -> None:
    answer = "\n".join([prose, *found] if prose else found)
    auto = answer_grammar(TOOLS, check_tool_choice("auto", NAMES))
    forced = answer_grammar(TOOLS, check_tool_choice("any", NAMES, parallel=True))
    single = answer_grammar(TOOLS, check_tool_choice("any", NAMES))
    assert accepts(auto, answer)
    assert accepts(forced, answer) is (not prose)
    assert accepts(single, answer) is (not prose and len(found) == 1)
    text, parsed = read_all(answer)
    assert text == prose
    assert [call_text(c.name or "", c.arguments) for c in parsed] == found


@pytest.mark.parametrize(
    "answer",
    [
        call_text("Nothing", {}),
        call_text("Note", {}),
        call_text("Note", {"text": 1}),
        call_text("Note", {"text": "x", "more": 1}),
        call_text("Query", {"table": "secrets"}),
        call_text("Note", {"text": "x"}) + " and then some",
        '<tool_call>\n{"name":"Note","arguments":{"text":"x"}}\n</tool_call>',
        "<tool_call>",
    ],
)
def test_the_grammar_refuses_what_no_tool_takes(accepts: Any, answer: str) -> None:
    for choice in ("auto", "any"):
        assert not accepts(answer_grammar(TOOLS, check_tool_choice(choice, NAMES)), answer)


def test_a_named_tool_and_a_response_format(accepts: Any) -> None:
    note, query = call_text("Note", {"text": "x"}), call_text("Query", {"table": "users"})
    named = answer_grammar(TOOLS, check_tool_choice("Note", NAMES))
    assert accepts(named, note)
    assert not accepts(named, query)
    assert not accepts(named, f"{note}\n{note}")
    either = answer_grammar(TOOLS, check_tool_choice(None, NAMES), Note.model_json_schema())
    assert accepts(either, query)
    assert accepts(either, '{"text": "x"}')
    assert not accepts(either, "free text")
    assert answer_grammar([], check_tool_choice(None, [])) is None
    assert answer_grammar(TOOLS, check_tool_choice("none", NAMES)) is None


def test_a_schema_that_cannot_be_a_grammar_names_its_tool() -> None:
    broken = tool_schemas([{"function": {"name": "bad", "parameters": {"$ref": "#/$defs/gone"}}}])
    with pytest.raises(ConfigError, match="tool 'bad'"):
        answer_grammar(broken, ToolChoice("auto", ("bad",)))


pieces_of = st.lists(
    st.one_of(
        calls,
        st.sampled_from(["text ", "\n", "<tool", "<tool_call>", "</tool_call>", '{"name": "Note", ', "<", "  "]),
        st.text(max_size=6),
    ),
    max_size=6,
)


def normal(found: list[Any]) -> list[Any]:
    """Neighbouring texts joined, ids left out."""
    result: list[Any] = []
    for piece in found:
        if isinstance(piece, CallStart):
            continue
        if isinstance(piece, ParsedCall):
            result.append((piece.name, json.dumps(piece.arguments), piece.raw))
        elif result and isinstance(result[-1], str):
            result[-1] += piece
        else:
            result.append(piece)
    return result


@settings(max_examples=300, deadline=None)
@given(parts=pieces_of, data=st.data())
def test_reading_does_not_depend_on_how_the_text_was_cut(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    whole = ToolCallReader()
    expected = normal([*whole.feed(text), *whole.finish()])
    reader, found, position = ToolCallReader(), [], 0
    while position < len(text):
        size = data.draw(st.integers(1, 7))
        found += reader.feed(text[position : position + size])
        position += size
    assert normal([*found, *reader.finish()]) == expected
    kept = "".join(piece if isinstance(piece, str) else piece[2] for piece in expected)
    assert "".join(kept.split()) == "".join(text.split())  # nothing but blanks is ever dropped


@pytest.mark.parametrize(
    "raw",
    [
        "<tool_call>\nnot json\n</tool_call>",
        '<tool_call>\n{"name": 3, "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "Note", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n["Note"]\n</tool_call>',
        '<tool_call>\n{"name": "Note", "arguments": {"text": "</tool_call>',
    ],
)
def test_what_is_no_call_is_an_invalid_call(raw: str) -> None:
    _, (call,) = read_all(raw, "length")
    assert not call.valid
    assert call.raw == raw
    assert call.error


def test_a_closing_tag_inside_a_string_does_not_close() -> None:
    answer = call_text("Note", {"text": 'say "</tool_call>" \\'})
    _, (call,) = read_all(answer)
    assert call.arguments == {"text": 'say "</tool_call>" \\'}
    _, (late,) = read_all(answer.removesuffix("\n</tool_call>"))
    assert late.valid  # only the closing tag is missing


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice("auto", ("a", "b"))),
        ("auto", ToolChoice("auto", ("a", "b"))),
        (True, ToolChoice("required", ("a", "b"), True)),
        ("required", ToolChoice("required", ("a", "b"), True)),
        ("none", ToolChoice("none", ("a", "b"))),
        ("b", ToolChoice("required", ("b",), True)),
        ({"type": "function", "function": {"name": "b"}}, ToolChoice("required", ("b",), True)),
        ({"type": "tool", "name": "b"}, ToolChoice("required", ("b",), True)),
    ],
)
def test_tool_choices(choice: Any, expected: ToolChoice) -> None:
    assert check_tool_choice(choice, ["a", "b"]) == expected


@pytest.mark.parametrize("choice", ["c", {"function": {}}, 3, {"name": "c"}])
def test_bad_tool_choices(choice: Any) -> None:
    with pytest.raises(ConfigError, match="'a', 'b'"):
        check_tool_choice(choice, ["a", "b"])


@settings(max_examples=100, deadline=None)
@given(found=st.lists(calls, min_size=1, max_size=3), size=st.integers(1, 9))
def test_the_name_of_a_call_comes_before_its_arguments(found: list[str], size: int) -> None:
    text, reader, pieces = "\n".join(found), ToolCallReader(), []
    for position in range(0, len(text), size):
        pieces += reader.feed(text[position : position + size])
    pieces += reader.finish()
    starts, ends = pieces[::2], pieces[1::2]
    assert [(type(a), type(b)) for a, b in zip(starts, ends, strict=True)] == [(CallStart, ParsedCall)] * len(found)
    assert [(a.name, a.id) for a in starts] == [(b.name, b.id) for b in ends]
    assert len({a.id for a in starts}) == len(found)


def test_a_call_with_two_names_is_invalid() -> None:
    _, (call,) = read_all('<tool_call>\n{"name": "Note", "arguments": {}, "name": "Query"}\n</tool_call>')
    assert (call.valid, call.name) == (False, "Note")
