"""The syntax of one answer: the grammar that holds the model to it, and the reader that takes it apart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from memdecay_adapters.langchain.answer_reader import AnswerReader, NativeReader, Refined
from memdecay_adapters.langchain.parser_choice import AUTO, NATIVE, Parsers, choose_parsers
from memdecay_adapters.langchain.structured_output import response_schema
from memdecay_adapters.langchain.templates.render import ChatTemplate
from memdecay_adapters.langchain.think_reader import THINK_OPEN, ThinkReader
from memdecay_adapters.langchain.tool_choice import ToolChoice, tool_schemas
from memdecay_adapters.langchain.tool_grammar import after_reasoning, answer_grammar
from memdecay_adapters.langchain.tool_parsing import ToolCallReader
from memdecay_adapters.langchain.warn import warn_once
from memdecay_agents.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from memdecay_adapters.langchain.vllm_parsers import VllmFormat


class AnswerFormat(NamedTuple):
    """How one answer is constrained and read."""

    grammar: str | None
    """Structural tag, as JSON; None: any text will do."""
    skip_special_tokens: bool
    """False: the reader needs the text of special tokens."""
    vllm: VllmFormat | None
    """vLLM's parsers for this answer; None: all is native."""
    parsers: Parsers
    reads_calls: bool
    """Whether tool calls may be in the answer."""
    opened: bool
    """Whether the prompt ends with an open ``<think>``."""

    def reader(self, prompt_token_ids: Sequence[int]) -> AnswerReader:
        """The reader of the answer to this prompt."""
        thinking = self.parsers.reasoning == NATIVE
        if self.vllm is None:
            return NativeReader(calls=self.reads_calls, thinking=thinking, opened=thinking and self.opened)
        reader = self.vllm.reader(prompt_token_ids)
        if self.parsers.tool == NATIVE:
            return Refined(reader, ToolCallReader(self.reads_calls))
        return Refined(reader, ThinkReader(True, self.opened)) if thinking else reader


def answer_format(
    parsers: Parsers,
    tokenizer: Any,
    *,
    tools: Sequence[Mapping[str, Any]],
    choice: ToolChoice,
    response_format: Any,
    prompt_text: str = "",
    thinks: bool = False,
) -> AnswerFormat:
    """Settle how one answer is constrained and read.

    Args:
        parsers: who reads.
        tokenizer: the model's.
        tools: OpenAI tool schemas.
        choice: which of them may or must be called.
        response_format: see `response_schema`.
        prompt_text: the rendered prompt; its end tells whether reasoning is open already.
        thinks: whether the model may reason in ``<think>`` tags before a forced call or JSON. Not where the engine
            itself keeps the grammar waiting until the reasoning has ended.

    Raises:
        ConfigError: a schema or a parser that does not fit. UnsupportedError: calls that cannot be forced.
    """
    reads_calls = choice.mode != "none"
    schema = response_schema(response_format)
    opened = prompt_text.rstrip().endswith(THINK_OPEN)
    leads = thinks and parsers.reasoning is not None and (choice.mode == "required" or schema is not None)
    native_tools = parsers.tool == NATIVE or not reads_calls
    grammar = answer_grammar(tool_schemas(tools), choice, schema) if native_tools else None
    if grammar is not None and leads:
        inner = json.loads(grammar)["format"]
        grammar = json.dumps({"type": "structural_tag", "format": after_reasoning(inner, opened)})
    theirs = Parsers(NATIVE if native_tools else parsers.tool, parsers.reasoning)
    reasoning = None if theirs.reasoning == NATIVE else theirs.reasoning
    if theirs.tool == NATIVE and reasoning is None:
        return AnswerFormat(grammar, True, None, theirs, reads_calls, opened)
    from memdecay_adapters.langchain.vllm_parsers import VllmFormat

    given = None if schema is None else {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    vllm = VllmFormat(
        None if native_tools else theirs.tool,
        reasoning,
        tokenizer,
        tools=() if native_tools else tools,
        choice=choice,
        response_format=None if native_tools else given,
        reasoning_first=(lambda answer: after_reasoning(answer, opened)) if leads else None,
    )
    constraint = vllm.constraint
    return AnswerFormat(
        grammar or constraint.grammar, constraint.skip_special_tokens, vllm, theirs, reads_calls, opened
    )


def chosen_format(
    template: ChatTemplate, tokenizer: Any, *, tool_parser: str, reasoning_parser: str | None, **asked: Any
) -> AnswerFormat:
    """`answer_format` with the parsers that `choose_parsers` settles.

    A parser that was not named by the user and does not fit the tokenizer or the request gives way to the native
    reader, with one warning.

    Args:
        template: the model's chat template.
        tokenizer: the model's.
        tool_parser: see `choose_parsers`.
        reasoning_parser: see `choose_parsers`.
        **asked: further arguments of `answer_format`.

    Raises:
        ConfigError, UnsupportedError: see `answer_format`.
    """
    parsers = choose_parsers(template, tool_parser, reasoning_parser)
    try:
        return answer_format(parsers, tokenizer, **asked)
    except (ConfigError, UnsupportedError) as error:
        native = Parsers(
            NATIVE if tool_parser == AUTO else parsers.tool,
            (NATIVE if "</think>" in template.source else None) if reasoning_parser == AUTO else parsers.reasoning,
        )
        if native == parsers:
            raise
        format = answer_format(native, tokenizer, **asked)
        warn_once(
            ("parsers", template.name, *map(str, parsers)),
            f"The chat template of {template.name} is read natively and not by {parsers}: {error}",
        )
        return format
