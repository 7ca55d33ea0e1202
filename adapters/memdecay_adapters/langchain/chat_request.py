"""From messages and keywords to a request for the engine: prompt, hints, sampling, grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage

from memdecay_adapters.langchain.answer_format import AnswerFormat, chosen_format
from memdecay_adapters.langchain.answer_reader import AnswerReader
from memdecay_adapters.langchain.call_settings import CALL_KEYS, CallSettings, ModelDefaults, resolve_call
from memdecay_adapters.langchain.needs import needed_next
from memdecay_adapters.langchain.parser_choice import AUTO
from memdecay_adapters.langchain.prompt import TagErrors, build_prompt, chat_template_of
from memdecay_adapters.langchain.region_rules import DEFAULT_RULES, RegionRules
from memdecay_adapters.langchain.sampling import ALIASES, SAMPLING_KEYS, sampling_fields, to_sampling_params
from memdecay_adapters.langchain.time_limit import check_time_limit
from memdecay_adapters.langchain.tool_choice import check_tool_choice, tool_schemas
from memdecay_agents.agent_budgets import FixedBudget
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ConfigError
from memdecay_agents.hints import MAX_HINTS_BYTES, MAX_MESSAGES, RequestHints
from memdecay_agents.spans import Span, coarsen

if TYPE_CHECKING:
    from vllm import SamplingParams

    from memdecay_adapters.engine import MemDecayEngine, RequestStream

TOOL_KEYS = frozenset({"tools", "tool_choice", "parallel_tool_calls", "response_format"})
PARSER_KEYS = frozenset({"tool_parser", "reasoning_parser"})
PASSED_KEYS = frozenset(
    {"model", "stream", "stream_usage", "stream_options", "strict", "chat_template", "timeout", "max_retries"}
)
"""Keywords that other code passes; those that are not read elsewhere say nothing."""


MOST_SPANS = 1500
"""Spans of one request: with long region names they fill most of the 64 KiB that hints may have."""

_SPAN_BYTES, _MESSAGE_BYTES, _OTHER_BYTES = 27, 24, 8192
"""At most, as JSON: a span without its region's name, a message, and all else (names are at most 1,024 characters)."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One call, ready for the engine."""

    engine: MemDecayEngine
    prompt_token_ids: list[int]
    hints: RequestHints
    sampling: SamplingParams
    settings: CallSettings
    format: AnswerFormat
    """How the answer is constrained and read."""
    with_logprobs: bool
    time_limit_seconds: float | None
    """Most time that the request may take."""

    def submit(self) -> RequestStream:
        """Start it; see `MemDecayEngine.submit`."""
        stream = self.engine.submit(self.prompt_token_ids, sampling=self.sampling, hints=self.hints)
        stream.limit(self.time_limit_seconds)
        return stream

    def reader(self) -> AnswerReader:
        """A reader of the answer."""
        return self.format.reader(self.prompt_token_ids)


def build_request(
    engine: MemDecayEngine,
    messages: Sequence[BaseMessage],
    stop: Sequence[str] | None,
    call: Mapping[str, Any],
    *,
    metadata: Mapping[str, Any],
    sampling_defaults: Mapping[str, Any],
    defaults: ModelDefaults,
    chat_template: str | None = None,
    rules: RegionRules = DEFAULT_RULES,
    tag_errors: TagErrors = "infer",
    tool_parser: str = AUTO,
    reasoning_parser: str | None = AUTO,
    time_limit_seconds: float | None = None,
    own_config: MemDecayConfig | None = None,
) -> ChatRequest:
    """Build the request for one call.

    Args:
        engine: the engine that will serve it; its configuration knows the regions.
        messages: the conversation.
        stop: LangChain's stop strings.
        call: keywords of the call: sampling, tools, and settings of the node.
        metadata: run metadata, completed from the context.
        sampling_defaults: the model's sampling fields.
        defaults: the model's budgets, pins and output region.
        chat_template: template in place of the tokenizer's.
        rules: what region inference is told.
        tag_errors: see `build_prompt`.
        tool_parser: see `choose_parsers`; a keyword of the call wins.
        reasoning_parser: the same.
        time_limit_seconds: most time that the request may take; a keyword ``timeout`` of the call wins.
        own_config: whose budgets count where nothing else says; None: the engine's. A shared engine may have got a
            default budget from another chat model, which is not this one's.

    Raises:
        TagError: with ``tag_errors="raise"``, a tag that cannot be used.
        ConfigError: an unknown keyword or a value that does not hold.
        ContextLengthError: prompt and answer do not fit the model.
        RegionError: an unknown region.
    """
    _check_keywords(call)
    settings = resolve_call(metadata, _among(call, CALL_KEYS), defaults, engine.config)
    tools = list(call.get("tools") or [])
    choice = check_tool_choice(
        call.get("tool_choice"),
        [tool.name for tool in tool_schemas(tools)],
        parallel=call.get("parallel_tool_calls"),
    )
    source = call.get("chat_template") or chat_template
    template = chat_template_of(engine.tokenizer, source, tools or None)
    # what is forced to be a call will be read as a call in the next turn's prompt
    region = "tool_in" if choice.mode == "required" else settings.output_region
    prompt = build_prompt(
        messages,
        engine.tokenizer,
        tools=tools or None,
        config=engine.config,
        chat_template=source,
        default_output_region=region,
        rules=rules,
        tag_errors=tag_errors,
    )
    format = chosen_format(
        template,
        engine.tokenizer,
        tool_parser=call.get("tool_parser", tool_parser),
        reasoning_parser=call.get("reasoning_parser", reasoning_parser),
        tools=tools,
        choice=choice,
        response_format=call.get("response_format"),
        prompt_text=prompt.text,
        thinks="</think>" in template.source and not getattr(engine, "reasoning_parser", ""),
    )
    fields = sampling_fields(sampling_defaults, stop, _among(call, SAMPLING_KEYS | ALIASES.keys()))
    if not format.skip_special_tokens:
        fields["skip_special_tokens"] = False
    sampling = to_sampling_params(
        fields,
        prompt_tokens=len(prompt.token_ids),
        max_model_len=engine.max_model_len,
        grammar=format.grammar,
        make=getattr(engine, "make_sampling", None),
    )
    spans = tuple(coarsen(prompt.spans, engine.config, MOST_SPANS))
    hints = RequestHints(
        tenant=settings.tenant,
        session=settings.session,
        agent=settings.agent,
        turn=sum(message.type in ("ai", "AIMessageChunk") for message in messages),
        base=0,
        **_budget(settings, engine, own_config or engine.config),
        rewind=settings.rewind,
        pins=settings.pins,
        spans=spans,
        messages=messages_that_fit(spans, prompt.message_spans),
        output_region=region,
        needs_next=needed_next(messages, prompt.message_spans, engine.config.region_names),
    )
    return ChatRequest(
        engine=engine,
        prompt_token_ids=prompt.token_ids,
        hints=hints,
        sampling=sampling,
        settings=settings,
        format=format,
        with_logprobs=sampling.logprobs is not None,
        time_limit_seconds=check_time_limit(call.get("timeout", time_limit_seconds)),
    )


def messages_that_fit(spans: Sequence[Span], messages: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The messages' tokens if the hints hold them beside the spans, else none: explanations do without."""
    span_bytes = sum(len(json.dumps(span.region, ensure_ascii=False).encode()) + _SPAN_BYTES for span in spans)
    fits = span_bytes + _MESSAGE_BYTES * len(messages) + _OTHER_BYTES <= MAX_HINTS_BYTES
    return tuple(messages) if fits and len(messages) <= MAX_MESSAGES else ()


def _budget(settings: CallSettings, engine: MemDecayEngine, own_config: MemDecayConfig) -> dict[str, Any]:
    """The budget's field of the hints. No field means the configuration's own budget to the engine: where no budget
    is meant, name the longest."""
    budget = settings.budget
    unlimited = settings.unlimited or (budget is None and own_config.budget_of(settings.agent) is None)
    if unlimited and engine.config.budget_of(settings.agent) is not None:
        page = engine.config.page_size_tokens
        budget = FixedBudget(tokens=max(engine.max_model_len, page) + page)
    if isinstance(budget, FixedBudget) and budget.guaranteed_tokens is None:
        return {"budget_tokens": budget.tokens}
    return {"budget": budget}


def _among(call: Mapping[str, Any], keys: frozenset[str] | set[str]) -> dict[str, Any]:
    return {key: value for key, value in call.items() if key in keys}


def _check_keywords(call: Mapping[str, Any]) -> None:
    known = SAMPLING_KEYS | ALIASES.keys() | CALL_KEYS | TOOL_KEYS | PARSER_KEYS | PASSED_KEYS
    for key in call:
        if key not in known:
            raise ConfigError(
                where=f"keyword {key!r} of a chat model call",
                rule="unknown",
                remedy=f"Known keywords: {', '.join(sorted(known))}.",
            )
