"""The inference table, and tags on messages, blocks and parts of texts."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    messages_from_dict,
    messages_to_dict,
)

from memdecay_adapters.langchain import (
    Between,
    MemDecayWarning,
    RegionRules,
    infer_parts,
    mark,
    message_text,
    tag,
    validate_tags,
)
from memdecay_adapters.langchain.tags import TAG_KEY, raise_tag_error
from memdecay_adapters.langchain.warn import reset_warnings
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import RegionError, TagError, UnsupportedError
from memdecay_agents.regions import REGIONS
from memdecay_agents.spans import SpanFlag

CONFIG = MemDecayConfig()


def regions(message: BaseMessage, **options: Any) -> list[tuple[str, str]]:
    parts = infer_parts(message, REGIONS, on_tag_error=raise_tag_error, **options)
    assert "".join(part.text for part in parts.text) == message_text(message)
    return [(part.text, part.label.region) for part in parts.text]


def tool(**fields: Any) -> ToolMessage:
    return ToolMessage("x", tool_call_id="1", **fields)


def tags(*raw: Any) -> dict[str, Any]:
    return {TAG_KEY: list(raw)}


DOCUMENTS = [Document("a"), Document("b")]
TABLE: list[tuple[BaseMessage, str]] = [
    (SystemMessage("x"), "system"),
    (HumanMessage("x"), "user"),
    (AIMessage("x"), "scratchpad"),
    (tool(), "tool_out"),
    (tool(name="write_todos"), "plan"),
    (tool(artifact=DOCUMENTS), "retrieval"),
    (tool(artifact=[]), "tool_out"),
    (tool(artifact=["no document"]), "tool_out"),
    (tool(name="write_todos", artifact=DOCUMENTS), "plan"),
    (tool(name="write_todos", status="error"), "tool_out"),
    (tool(artifact=DOCUMENTS, status="error"), "tool_out"),
    (FunctionMessage("x", name="write_todos"), "plan"),
    (HumanMessage("x", additional_kwargs={"lc_source": "summarization"}), "scratchpad"),
    (tool(response_metadata={"__handoff_destination": "writer"}), "tool_out"),
    (AIMessage("x", response_metadata={"__is_handoff_back": True}), "tool_in"),
    (HumanMessage("x", additional_kwargs=tags({"region": "retrieval"})), "retrieval"),
    (tool(name="write_todos", additional_kwargs=tags({"region": "tool_out"})), "tool_out"),
    (AIMessage("x", additional_kwargs=tags({"region": "plan", "source": "node"})), "plan"),
    (ChatMessage("x", role="developer"), "system"),
    (ChatMessage("x", role="user"), "user"),
    (ChatMessage("x", role="critic"), "scratchpad"),
]


@pytest.mark.parametrize(("message", "region"), TABLE)
def test_the_table(message: BaseMessage, region: str) -> None:
    assert regions(message) == [("x", region)]
    assert infer_parts(message, REGIONS).default.region == region


def test_an_explicit_tag_beats_a_nodes_stamp_and_a_later_one_an_earlier() -> None:
    stamp = {"region": "scratchpad", "source": "node"}
    assert regions(AIMessage("x", additional_kwargs=tags({"region": "plan"}, stamp))) == [("x", "plan")]
    assert regions(AIMessage("x", additional_kwargs=tags({"region": "plan"}, {"region": "user"}))) == [("x", "user")]


def test_in_an_ai_message_calls_and_thinking_keep_their_regions() -> None:
    message = AIMessage(
        "<think>hm</think>So.",
        tool_calls=[{"name": "t", "args": {}, "id": "1"}],
        additional_kwargs={**tags({"region": "plan"}), "reasoning_content": "deep"},
    )
    parts = infer_parts(message, REGIONS)
    assert regions(message) == [("<think>hm</think>", "scratchpad"), ("So.", "plan")]
    assert [label.region for label in parts.calls] == ["tool_in"]
    assert [(p.text, p.label.region) for p in parts.reasoning] == [("deep", "scratchpad")]
    assert parts.default.region == "plan"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no end <think>rest", ["no end ", "<think>rest"]),
        ("all of it</think>answer", ["all of it</think>", "answer"]),
        ("<think>a</think>b<think>c</think>d", ["<think>a</think>", "b", "<think>c</think>", "d"]),
        ("plain", ["plain"]),
    ],
)
def test_where_thinking_begins_and_ends(text: str, expected: list[str]) -> None:
    found = regions(AIMessage(text, additional_kwargs=tags({"region": "plan"})))
    assert [piece for piece, _ in found] == expected
    assert all((region == "scratchpad") == ("think>" in piece) for piece, region in found)
    assert len(regions(HumanMessage(text))) == 1


def test_block_tags_beat_the_messages_tag() -> None:
    content = [tag("C", "retrieval"), "plain", tag("P", "plan", pinned=True)]
    message = HumanMessage(content, additional_kwargs=tags({"region": "scratchpad"}))
    assert regions(message) == [("C", "retrieval"), ("plain", "scratchpad"), ("P", "plan")]
    assert infer_parts(message, REGIONS).text[2].label.flags == SpanFlag.PINNED


def test_reasoning_blocks_are_no_text() -> None:
    message = AIMessage([{"type": "reasoning", "reasoning": "why"}, {"type": "text", "text": "so"}])
    assert message_text(message) == "so"
    assert infer_parts(message, REGIONS).reasoning[0].text == "why"


@pytest.mark.parametrize("kind", ["image", "image_url", "audio", "video", "file", "hologram"])
def test_blocks_that_are_no_text_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedError, match=kind):
        infer_parts(HumanMessage([{"type": kind, kind: {}}]), REGIONS)


def test_rules() -> None:
    between = RegionRules(between=[Between("<context>", "</context>", "retrieval")])
    message = HumanMessage("Q <context>a</context> R <context>b</context> S <context>open")
    assert regions(message, rules=between) == [
        ("Q ", "user"), ("<context>a</context>", "retrieval"), (" R ", "user"),
        ("<context>b</context>", "retrieval"), (" S <context>open", "user"),
    ]  # fmt: skip
    assert len(regions(mark(message, "plan"), rules=between)) == 1
    only = RegionRules(between=[Between("<context>", "</context>", "retrieval", types=("human",))])
    assert [region for _, region in regions(message, rules=only)].count("retrieval") == 2
    assert {region for _, region in regions(AIMessage(message.content), rules=only)} == {"scratchpad"}
    assert {region for _, region in regions(AIMessageChunk(message.content), rules=between)} > {"retrieval"}
    assert regions(tool(name="search"), rules=RegionRules(tool_regions={"search": "retrieval"})) == [("x", "retrieval")]
    summary = HumanMessage("x", additional_kwargs={"lc_source": "summarization"})
    assert regions(summary, rules=RegionRules(summarization_region="plan")) == [("x", "plan")]
    with pytest.raises(RegionError, match="nowhere"):
        RegionRules(tool_regions={"t": "nowhere"}).check(REGIONS)


def test_only_messages_are_marked() -> None:
    with pytest.raises(TagError, match=r"it is a str.*only messages.*tag"):
        mark("Crate 7 holds pears.", "retrieval")  # type: ignore[type-var]


def test_mark_parts_of_a_text() -> None:
    message = mark(HumanMessage("ask: the context. end"), [(5, 17, "retrieval")])
    assert regions(message) == [("ask: ", "user"), ("the context.", "retrieval"), (" end", "user")]
    both = mark(message, "plan", pinned=True)
    assert regions(both) == [("ask: ", "plan"), ("the context.", "retrieval"), (" end", "plan")]
    assert mark(mark(message, "plan"), "system").additional_kwargs[TAG_KEY][-1] == {"region": "system"}
    assert TAG_KEY not in HumanMessage("ask").additional_kwargs


@given(st.text(max_size=30), st.data())
def test_marked_parts_come_back_as_marked(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), unique=True, max_size=6)))
    spans = [(a, b, data.draw(st.sampled_from(REGIONS))) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
    message = mark(HumanMessage(text), spans)
    validate_tags([message], CONFIG)
    by_character = [region for piece, region in regions(message) for _ in piece]
    expected = ["user"] * len(text)
    for start, end, region in spans:
        expected[start:end] = [region] * (end - start)
    assert by_character == expected


def test_tags_survive_checkpoints_and_json() -> None:
    message = mark(HumanMessage([tag("abc", "plan"), "def"], id="m"), [(3, 6, "retrieval")])
    stored = json.loads(json.dumps(messages_to_dict([message])))
    assert regions(messages_from_dict(stored)[0]) == regions(message) == [("abc", "plan"), ("def", "retrieval")]


def test_tags_append_when_chunks_merge() -> None:
    chunk = AIMessageChunk("a", additional_kwargs=tags({"region": "plan"}))
    assert regions(chunk + AIMessageChunk("b")) == [("ab", "plan")]
    assert regions(chunk + chunk) == [("aa", "plan")]


def test_unknown_regions_are_refused_where_the_user_is() -> None:
    for make in (lambda: tag("a", "plann"), lambda: mark(HumanMessage("abc"), "plann")):
        with pytest.raises(TagError, match="unknown region 'plann'"):
            make()
    with pytest.raises(TagError, match="unknown region 'other'"):
        mark(HumanMessage("abc"), [(0, 1, "other")])
    own = MemDecayConfig(regions={"notes": {"base_priority": 0.5}})
    assert tag("a", "notes", config=own)["extras"][TAG_KEY] == {"region": "notes"}


@pytest.mark.parametrize(
    "spans", [[(0, 0, "plan")], [(0, 9, "plan")], [(-1, 2, "plan")], [(0, 2, "plan"), (1, 3, "plan")]]
)
def test_spans_that_cannot_be_are_refused(spans: list[tuple[int, int, str]]) -> None:
    with pytest.raises(TagError, match="characters"):
        mark(HumanMessage("abc"), spans)


STALE = mark(HumanMessage("ask: the context. end"), [(5, 17, "retrieval")]).model_copy(
    update={"content": "edited: ask: the context. end"}
)
UNUSABLE = [
    HumanMessage("x", additional_kwargs=tags({"region": "nowhere"})),
    HumanMessage("x", additional_kwargs=tags("plan")),
    HumanMessage("x", additional_kwargs=tags({"region": "plan", "colour": "red"})),
    HumanMessage("x", additional_kwargs=tags({"region": 3})),
    HumanMessage("x", additional_kwargs=tags({"region": "plan", "supersedes": "call_1"})),
    HumanMessage("x", additional_kwargs=tags({"region": "plan", "supersedes": [1]})),
    HumanMessage("x", additional_kwargs=tags({"region": "plan", "start": 0})),
    HumanMessage("x", additional_kwargs={TAG_KEY: "planplan"}),
    HumanMessage([{"type": "text", "text": "x", "extras": {TAG_KEY: {"region": "nowhere"}}}]),
    STALE,
]


@pytest.mark.parametrize("message", UNUSABLE)
def test_unusable_tags_are_inferred_with_one_warning_or_refused(message: HumanMessage) -> None:
    reset_warnings()
    with pytest.warns(MemDecayWarning) as seen:
        parts, _ = (infer_parts(message, REGIONS) for _ in range(2))
    assert len(seen) == 1
    assert {part.label.region for part in parts.text} == {"user"}
    with pytest.raises(TagError):
        validate_tags([message], CONFIG)


def test_good_tags_are_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        validate_tags([mark(HumanMessage([tag("a", "plan"), "b"]), [(1, 2, "user")])], CONFIG)
