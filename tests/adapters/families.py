"""Real chat templates with their special tokens, and random conversations for them."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

TEMPLATES = Path(__file__).parent / "templates"
_BAR = "\uff5c"  # the fullwidth bar of DeepSeek's special tokens
SPECIAL = re.compile(
    rf"<\|[a-zA-Z_▁]+\|>|<{_BAR}[^{_BAR}\s]+{_BAR}>|\[/?(?:INST|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\]|\[gMASK\]|<sop>"
    r"|</?(?:start|end)_of_turn>|</?tool_call>|</?tool_response>|</?think>"
)
BOS_EOS = {
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "smollm2": ("<|im_start|>", "<|im_end|>"),
    "qwen2.5": ("<|endoftext|>", "<|im_end|>"),
    "qwen3": ("<|endoftext|>", "<|im_end|>"),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>"),
    "llama3.1": ("<|begin_of_text|>", "<|eot_id|>"),
    "hermes": ("<|begin_of_text|>", "<|im_end|>"),
    "mistral": ("<s>", "</s>"),
    "gemma2": ("<bos>", "<eos>"),
    "glm4.6": ("<|endoftext|>", "<|user|>"),
    "deepseek-v3.1": (f"<{_BAR}begin▁of▁sentence{_BAR}>", f"<{_BAR}end▁of▁sentence{_BAR}>"),
    "gpt-oss": ("<|startoftext|>", "<|return|>"),
    "kimi-k2": ("[BOS]", "[EOS]"),
    "phi3.5": ("<s>", "<|endoftext|>"),
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


def make_family(name: str, tokenizer: Any) -> Family:
    source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    own = copy.deepcopy(tokenizer)
    bos, eos = BOS_EOS[name]
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
