"""A conversation as token ids, each with its region: what the chat model sends to the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from langchain_core.messages import BaseMessage

from memdecay_adapters.langchain.kept_ids import find_kept
from memdecay_adapters.langchain.message_spans import message_spans
from memdecay_adapters.langchain.messages import Conversation, convert_messages
from memdecay_adapters.langchain.region_rules import DEFAULT_RULES, RegionRules
from memdecay_adapters.langchain.regions import Label
from memdecay_adapters.langchain.tags import raise_tag_error, validate_tags, warn_tag_error
from memdecay_adapters.langchain.templates.render import ChatTemplate, note_fallback, render_regions
from memdecay_adapters.langchain.tokens import tokenise
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import UnsupportedError
from memdecay_agents.spans import Span

TagErrors = Literal["raise", "infer"]


@dataclass(frozen=True, slots=True)
class TaggedPrompt:
    """A prompt and the region of every token of it."""

    token_ids: list[int]
    """Ids as ``tokenizer.apply_chat_template(...)`` gives them, but for answers that carry ids of their own."""
    spans: list[Span]
    """Spans that partition [0, len(token_ids))."""
    text: str
    """The rendered prompt."""
    exact: bool
    """False: the template or tokenizer defeated the tracking; ids are right, borders are approximate."""
    region_tokens: dict[str, int]
    """Tokens of each region that occurs."""
    fallback_reason: str | None = None
    """Why ``exact`` is False."""
    message_spans: tuple[tuple[int, int], ...] = ()
    """Tokens [first, past the last) of each message. Messages that the template joins share theirs, one that it leaves
    out has (0, 0). What belongs to no message (tool schemas, the answer's opening) is in none."""


def build_prompt(
    messages: Sequence[BaseMessage],
    tokenizer: Any,
    *,
    tools: Sequence[dict[str, Any]] | None = None,
    config: MemDecayConfig,
    add_generation_prompt: bool = True,
    chat_template: str | None = None,
    default_output_region: str = "scratchpad",
    rules: RegionRules = DEFAULT_RULES,
    tag_errors: TagErrors = "infer",
    template_options: Mapping[str, Any] | None = None,
) -> TaggedPrompt:
    """Render and tokenise a conversation once, and name the region of every token.

    Args:
        messages: the conversation.
        tokenizer: a transformers tokenizer; ``tokenizer.chat_template`` unless ``chat_template`` is given.
        tools: OpenAI tool schemas.
        config: knows the regions, and which of two is more protected.
        add_generation_prompt: open the assistant's message at the end.
        chat_template: a template, or the name of one of the tokenizer's.
        default_output_region: region of that opening, that is, of what the model is about to write. It does
            not change earlier messages: an untagged AIMessage is scratchpad, whoever reads it.
        rules: what region inference may be told.
        tag_errors: a tag that cannot be used (unknown region, stale text, malformed) is ignored with one
            warning and the region inferred ("infer": a run goes on), or refused ("raise": at an edge where
            a user is there to see it).
        template_options: further variables of the template, such as ``{"enable_thinking": False}``.

    Raises:
        TagError: with ``tag_errors="raise"``, a tag that cannot be used.
        RegionError: ``default_output_region`` or a region in ``rules`` is unknown.
        UnsupportedError: no message, no template, a content block that is no text, or a conversation that
            the template refuses.
    """
    config.region_index(default_output_region)
    rules.check(config.region_names)
    if tag_errors == "raise":
        validate_tags(messages, config)
    template = chat_template_of(tokenizer, chat_template, tools, template_options)
    conversation = template_conversation(messages, template, tools, config, rules, tag_errors)
    rendered = render_regions(
        template,
        conversation.entries,
        conversation.plain_messages,
        conversation.defaults,
        tools=conversation.tools,
        plain_tools=conversation.plain_tools,
        add_generation_prompt=add_generation_prompt,
        generation=Label(default_output_region),
    )
    opening = "" if rendered.generation_start is None else rendered.text[rendered.generation_start :]
    kept = find_kept(messages, tokenizer, rendered.text, opening)
    tokenised = tokenise(tokenizer, rendered.text, rendered.stretches, config, kept)
    reason = rendered.fallback_reason
    if reason is None and not tokenised.exact:
        reason = "the tokenizer gives no character offsets"
        note_fallback(
            template.name,
            f"{reason} (it is no fast one). Token ids are exact, but the borders between regions are found by "
            "searching the text for each token and may be off by a few tokens.",
        )
    region_tokens: dict[str, int] = {}
    for span in tokenised.spans:
        region_tokens[span.region] = region_tokens.get(span.region, 0) + span.end - span.start
    return TaggedPrompt(
        tokenised.token_ids, tokenised.spans, rendered.text, reason is None, region_tokens, reason,
        message_spans(len(messages), conversation.sources, rendered.entries, tokenised.starts),
    )  # fmt: skip


def chat_template_of(
    tokenizer: Any,
    chat_template: str | None = None,
    tools: Sequence[dict[str, Any]] | None = None,
    template_options: Mapping[str, Any] | None = None,
) -> ChatTemplate:
    """Return the template that a tokenizer would use.

    Raises:
        UnsupportedError: there is none.
    """
    try:
        source = tokenizer.get_chat_template(chat_template, tools=list(tools) if tools else None)
    except ValueError as error:
        raise UnsupportedError(
            where=f"tokenizer {getattr(tokenizer, 'name_or_path', '')!r}",
            rule=f"it has no chat template to use ({error})",
            remedy="Use an instruct model, or pass chat_template=.",
        ) from error
    return ChatTemplate(tokenizer, source, template_options or {})


def template_conversation(
    messages: Sequence[BaseMessage],
    template: ChatTemplate,
    tools: Sequence[dict[str, Any]] | None,
    config: MemDecayConfig,
    rules: RegionRules = DEFAULT_RULES,
    tag_errors: TagErrors = "infer",
) -> Conversation:
    """Return the message dicts and tools that the template is given.

    Raises:
        UnsupportedError: there is no message, or one that cannot be written.
    """
    if not messages:
        raise UnsupportedError(
            where="a prompt", rule="it has no messages", remedy="Give the model at least one message."
        )
    return convert_messages(
        messages,
        template.features,
        tools=tools,
        known=config.region_names,
        rules=rules,
        on_tag_error=raise_tag_error if tag_errors == "raise" else warn_tag_error,
    )
