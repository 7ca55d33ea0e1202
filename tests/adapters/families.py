"""Real chat templates with their special tokens, and random conversations for them.

The templates are those that the package ``trl`` ships as files (found without importing it), and the small
model's own.
"""

from __future__ import annotations

import copy
import importlib.util
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

TRL_TEMPLATES = {
    "qwen2.5": "qwen2_5",
    "qwen3": "qwen3",
    "llama3": "llama3",
    "llama3.1": "llama3_1",
    "gemma": "gemma",
    "glm4moe": "glm4moe",
    "deepseek-v3": "deepseekv3",
    "gpt-oss": "gptoss",
    "phi3.5": "phi3_5",
    "cohere": "cohere",
    "lfm2": "lfm2_v2",
}
_BAR = "\uff5c"  # the fullwidth bar of DeepSeek's special tokens
SPECIAL = re.compile(
    rf"<\|[a-zA-Z_▁]+\|>|<{_BAR}[^{_BAR}\s]+{_BAR}>|\[/?(?:INST|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\]|\[gMASK\]|<sop>"
    r"|</?(?:start|end)_of_turn>|</?tool_call>|</?tool_response>|</?think>"
)
BOS_EOS = {
    "smollm2": ("<|im_start|>", "<|im_end|>"),
    "qwen2.5": ("<|endoftext|>", "<|im_end|>"),
    "qwen3": ("<|endoftext|>", "<|im_end|>"),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>"),
    "llama3.1": ("<|begin_of_text|>", "<|eot_id|>"),
    "gemma": ("<bos>", "<eos>"),
    "glm4moe": ("<|endoftext|>", "<|user|>"),
    "deepseek-v3": (f"<{_BAR}begin▁of▁sentence{_BAR}>", f"<{_BAR}end▁of▁sentence{_BAR}>"),
    "gpt-oss": ("<|startoftext|>", "<|return|>"),
    "phi3.5": ("<s>", "<|endoftext|>"),
    "cohere": ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
    "lfm2": ("<|startoftext|>", "<|im_end|>"),
}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Tool {name}",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "what to look for"},
                    "limit": {"type": "integer", "description": "how many"},
                },
                "required": ["query"],
            },
        },
    }
    for name in ("search_web", "read_file")
]


@dataclass(frozen=True)
class Family:
    """A model family: the small model's tokenizer with the family's special tokens and template."""

    name: str
    tokenizer: Any = field(repr=False)

    @property
    def source(self) -> str:
        return str(self.tokenizer.chat_template)


def template_source(name: str, tokenizer: Any) -> str:
    """A family's published template, read from the package that ships it."""
    if name == "smollm2":
        return str(tokenizer.chat_template)
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "chat_templates"
    return (folder / f"{TRL_TEMPLATES[name]}.jinja").read_text(encoding="utf-8")


def make_family(name: str, tokenizer: Any, source: str | None = None) -> Family:
    source = template_source(name, tokenizer) if source is None else source
    own = copy.deepcopy(tokenizer)
    bos, eos = BOS_EOS.get(name, ("<|im_start|>", "<|im_end|>"))
    own.add_special_tokens({"bos_token": bos, "eos_token": eos})
    own.add_tokens(sorted(set(SPECIAL.findall(source))), special_tokens=True)
    own.chat_template = source
    return Family(name, own)


def reference_ids(family: Family, messages: Any, tools: Any, add_generation_prompt: bool) -> list[int]:
    """Token ids that transformers itself makes of the same message dicts."""
    ids = family.tokenizer.apply_chat_template(
        messages, tools=tools, add_generation_prompt=add_generation_prompt, tokenize=True, return_dict=False
    )
    return list(ids)


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


@st.composite
def conversations(draw: st.DrawFn) -> list[BaseMessage]:
    """A conversation that every family takes: system or not, turns of a user, tool rounds, an answer."""
    messages: list[BaseMessage] = [SystemMessage(draw(texts))] if draw(st.booleans()) else []
    number = 0
    for _ in range(draw(st.integers(1, 3))):
        messages.append(HumanMessage(draw(texts)))
        for _ in range(draw(st.integers(0, 2))):
            calls = []
            for _ in range(draw(st.integers(1, 2))):
                number += 1
                tool = draw(st.sampled_from(["search_web", "read_file"]))
                calls.append({"name": tool, "args": draw(arguments), "id": f"call_{number:03d}", "type": "tool_call"})
            content = draw(st.one_of(st.just(""), texts))
            reasoning = {"reasoning_content": draw(texts)} if draw(st.booleans()) else {}
            messages.append(AIMessage(content, tool_calls=calls, additional_kwargs=reasoning))
            messages += [ToolMessage(draw(texts), tool_call_id=c["id"], name=c["name"]) for c in calls]
        messages.append(AIMessage(draw(texts)))
    if draw(st.booleans()):
        messages.append(HumanMessage(draw(texts)))
    return messages


def fits(family: str, messages: list[BaseMessage]) -> bool:
    """Whether the family's template takes it: gpt-oss wants either text or reasoning beside a call."""
    answers = [message for message in messages if isinstance(message, AIMessage) and message.tool_calls]
    both = any(message.content and message.additional_kwargs.get("reasoning_content") for message in answers)
    return family != "gpt-oss" or not both
