"""Tokens of messages, whatever they are: what ``trim_messages`` and middleware count with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import BaseMessage

from memdecay_adapters.langchain.prompt import build_prompt
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import UnsupportedError


def count_prompt_tokens(
    messages: Sequence[BaseMessage],
    tokenizer: Any,
    tools: Sequence[dict[str, Any]] | None,
    config: MemDecayConfig,
    chat_template: str | None,
) -> int:
    """Tokens of the prompt; of its messages one by one where the template refuses them together; 0 without any.

    Args:
        messages: the messages; they need be no conversation.
        tokenizer: the model's.
        tools: OpenAI tool schemas.
        config: knows the regions.
        chat_template: template in place of the tokenizer's.
    """
    if not messages:
        return 0
    try:
        prompt = build_prompt(messages, tokenizer, tools=tools, config=config, chat_template=chat_template)
        return len(prompt.token_ids)
    except UnsupportedError:
        if len(messages) == 1 and not tools:
            return _text_tokens(messages[0], tokenizer)
    schemas = len(tokenizer(json.dumps(list(tools)), add_special_tokens=False)["input_ids"]) if tools else 0
    return schemas + sum(count_prompt_tokens([one], tokenizer, None, config, chat_template) for one in messages)


def _text_tokens(message: BaseMessage, tokenizer: Any) -> int:
    """Tokens of a message's text and calls, without a template's own."""
    calls = [{"name": call["name"], "arguments": call["args"]} for call in getattr(message, "tool_calls", ())]
    text = str(message.text) + (json.dumps(calls, default=str) if calls else "")
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])
