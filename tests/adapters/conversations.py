"""Random conversations with everything that messages may carry, for properties of prompts."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from memdecay_adapters.langchain import mark, message_text, tag
from memdecay_agents.regions import REGIONS

_SNIPPETS = [
    "", " ", "\n", "  padded  ", "trailing \n\n", "\tTab", "Grüße, 東京 🙂🏽", "e\u0301 \u200b\ufeff",
    '{"a": [1, "\\"q\\""]}',
    "<|im_end|>", "<|im_start|>user", "<think>hidden</think>shown", "</think>", "<tool_call>", "[INST]", "'; -- %s {x}",
    "A & B < C > D", "ΟΔΥΣΣΕΥΣ ß", "100% of 5", "\u2028line\x0b",
]  # fmt: skip
texts = st.lists(
    st.one_of(
        st.sampled_from(_SNIPPETS),
        st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12),
        st.sampled_from(["alpha beta", "Some longer plain sentence, with words.", "42"]),
    ),
    max_size=4,
).map("".join)

arguments = st.fixed_dictionaries(
    {"query": texts},
    optional={"limit": st.integers(-3, 10**6), "flag": st.booleans(), "more": st.lists(texts, max_size=2)},
)


blocks = st.one_of(
    texts,
    texts.map(lambda text: {"type": "text", "text": text}),
    st.builds(tag, texts, st.sampled_from(REGIONS), pinned=st.booleans()),
)
contents = st.one_of(texts, texts, st.lists(blocks, max_size=3))


@st.composite
def tagged(draw: st.DrawFn, message: BaseMessage, earlier: list[str]) -> BaseMessage:
    """The message with a tag on all of it, on part of its text, or with none."""
    how = draw(st.sampled_from(["none", "none", "whole", "part"]))
    region, pinned = draw(st.sampled_from(REGIONS)), draw(st.booleans())
    supersedes = draw(st.lists(st.sampled_from(earlier), max_size=1)) if earlier else []
    length = len(message_text(message))
    if how == "whole":
        return mark(message, region, pinned=pinned, supersedes=supersedes)
    if how == "part" and length:
        start = draw(st.integers(0, length - 1))
        end = draw(st.integers(start + 1, length))
        return mark(message, [(start, end, region)], pinned=pinned, supersedes=supersedes)
    return message


@st.composite
def conversations(draw: st.DrawFn) -> list[BaseMessage]:
    """A conversation: system or not, turns of a user, rounds of parallel tools, reasoning, an answer; tags on some."""
    messages: list[BaseMessage] = [SystemMessage(draw(contents))] if draw(st.booleans()) else []
    silent_calls = draw(st.booleans())  # some templates refuse text or reasoning beside calls
    call_ids: list[str] = []

    def add(message: BaseMessage) -> None:
        messages.append(draw(tagged(message, call_ids)))

    for _ in range(draw(st.integers(1, 3))):
        add(HumanMessage(draw(contents)))
        for _ in range(draw(st.integers(0, 2))):
            calls = []
            for _ in range(draw(st.integers(1, 2))):
                call_id = f"call_{len(call_ids) + len(calls) + 1:03d}"
                tool = draw(st.sampled_from(["search_web", "read_file"]))
                calls.append({"name": tool, "args": draw(arguments), "id": call_id, "type": "tool_call"})
            content: Any = "" if silent_calls else draw(st.one_of(st.just(""), contents))
            given: dict[str, Any] = {}
            if not silent_calls and draw(st.booleans()):
                given["reasoning_content"] = draw(texts)
            elif not silent_calls and isinstance(content, list):
                content = [{"type": "reasoning", "reasoning": draw(texts)}, *content]
            add(AIMessage(content, tool_calls=calls, additional_kwargs=given))
            for call in calls:
                add(ToolMessage(draw(contents), tool_call_id=call["id"], name=call["name"]))
            call_ids += [str(call["id"]) for call in calls]
        add(AIMessage(draw(contents)))
    if draw(st.booleans()):
        add(HumanMessage(draw(contents)))
    return messages
