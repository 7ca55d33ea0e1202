"""vLLM's own tool-call and reasoning parsers, by name: the only file that touches ``vllm.parser`` (vLLM 0.32).

``ParserManager.get_parser`` composes a parser of both kinds; it constrains a request (``adjust_request``: the
grammar of the model's own call syntax) and reads the stream (``parse_delta``). The modules are large:
`parser_import` loads them in the background when an engine is there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from memdecay_adapters.engine.required import require_attributes
from memdecay_adapters.langchain.answer_reader import Piece
from memdecay_adapters.langchain.think_reader import Reasoning
from memdecay_adapters.langchain.tool_choice import ToolChoice
from memdecay_adapters.langchain.tool_grammar import CALL_OPEN
from memdecay_adapters.langchain.tool_parsing import CallStart, ParsedCall, new_call_id
from memdecay_adapters.langchain.warn import warn_once
from memdecay_agents.errors import ConfigError, UnsupportedError

_MODEL = "memdecay"  # a request must name a model; no parser reads it


def load_parser(tool_parser: str | None, reasoning_parser: str | None) -> None:
    """Import what `VllmFormat` needs for these names; seconds the first time, nothing after.

    Raises:
        ConfigError, UnsupportedError: see `VllmFormat`.
    """
    _parser_class(tool_parser, reasoning_parser)
    import vllm.entrypoints.openai.chat_completion.protocol  # noqa: F401


class Constraint(NamedTuple):
    """What a parser asks of the sampling."""

    grammar: str | None
    """Structural tag, as JSON; None: any text will do."""
    skip_special_tokens: bool
    """False: the parser reads the text of special tokens."""


class VllmFormat:
    """The answers of one request in a model family's own syntax, by vLLM's parsers.

    Args:
        tool_parser: name of a tool parser, or None.
        reasoning_parser: name of a reasoning parser, or None.
        tokenizer: the model's.
        tools: OpenAI tool schemas.
        choice: which of them may or must be called.
        response_format: OpenAI's ``response_format``, or None.
        reasoning_first: puts room for reasoning before a format, where the grammar should have it.

    Raises:
        ConfigError: an unknown name, or a parser that this tokenizer or these tools do not fit.
        UnsupportedError: a call is required, and the parser knows no grammar to force one.
    """

    def __init__(
        self,
        tool_parser: str | None,
        reasoning_parser: str | None,
        tokenizer: Any,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        choice: ToolChoice,
        response_format: Mapping[str, Any] | None = None,
        reasoning_first: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        where = ", ".join(
            f"{kind}_parser={name!r}"
            for kind, name in (("tool", tool_parser), ("reasoning", reasoning_parser))
            if name is not None
        )
        parser_class = _parser_class(tool_parser, reasoning_parser)
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        fields: dict[str, Any] = {"model": _MODEL, "messages": [{"role": "user", "content": ""}]}
        if tools and tool_parser is not None:
            fields |= {"tools": list(tools), "tool_choice": _openai_choice(choice)}
            fields["parallel_tool_calls"] = not choice.single
        if response_format is not None:
            fields["response_format"] = dict(response_format)
        try:
            request = ChatCompletionRequest(**fields)
            self._parser = parser_class(tokenizer, request.tools)
            self._request = self._parser.adjust_request(request)
            structured = self._request.extract_structured_outputs()
        except (ValueError, TypeError, RuntimeError, KeyError, ImportError, AssertionError) as error:
            raise ConfigError(
                where=where,
                rule=f"vLLM's parser refuses this model or request: {_first_line(error)}".rstrip("."),
                remedy="Name the parser that belongs to the model's family, or tool_parser='native'.",
            ) from error
        require_attributes(self._parser, "vLLM's parser", ("parse_delta", "adjust_request"))
        if choice.mode == "required" and structured is None and tool_parser is not None:
            raise UnsupportedError(
                where=where,
                rule="vLLM has no grammar by which this parser's calls could be forced",
                remedy="Use tool_choice='auto', or tool_parser='native'.",
            )
        grammar = None if structured is None else _structural_tag(structured, reasoning_first)
        self.constraint = Constraint(grammar, bool(self._request.skip_special_tokens))

    def reader(self, prompt_token_ids: Sequence[int]) -> VllmReader:
        """The reader of the answer to this prompt; one answer a format."""
        return VllmReader(self._parser, self._request, prompt_token_ids)


class VllmReader:
    """Reads an answer through a parser's stream; a call is given when it is complete, its name before."""

    def __init__(self, parser: Any, request: Any, prompt_token_ids: Sequence[int]) -> None:
        self._parser, self._request = parser, request
        self._prompt: list[int] | None = list(prompt_token_ids)
        self._token_ids: list[int] = []
        self._calls: list[dict[str, str]] = []
        self._given = 0
        self._named = 0
        self._broken = False

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning so far, as the parser counts them; 0 where it does not."""
        return int(self._parser.count_reasoning_tokens(self._token_ids))

    def feed(self, text: str, token_ids: Sequence[int]) -> list[Piece]:
        """See `AnswerReader.feed`."""
        self._token_ids.extend(token_ids)
        return self._read(text, list(token_ids), finished=False)

    def finish(self, finish_reason: str) -> list[Piece]:
        """See `AnswerReader.finish`."""
        pieces = self._read("", [], finished=True)
        return [*pieces, *self._complete(len(self._calls), finish_reason)]

    def _read(self, text: str, token_ids: list[int], *, finished: bool) -> list[Piece]:
        prompt, self._prompt = self._prompt or [], None if finished else self._prompt
        if self._broken:
            return [text] if text else []
        try:
            delta = self._parser.parse_delta(text, token_ids, self._request, prompt, finished=finished)
        except Exception as error:  # a parser's fault must not end a run whose answer is there
            self._broken = True
            name = type(self._parser).__mro__[1].__name__ + f" ({_first_line(error)})"
            warn_once(("vllm parser", name), f"vLLM's {name} failed while reading: the rest of the answer is text.")
            return [text] if text else []
        if delta is None:
            return []
        pieces: list[Piece] = []
        if delta.reasoning:
            pieces.append(Reasoning(delta.reasoning))
        if delta.content:
            pieces.append(delta.content)
        for call in delta.tool_calls or ():
            while len(self._calls) <= call.index:
                self._calls.append({"id": "", "name": "", "arguments": ""})
            known, function = self._calls[call.index], call.function
            known["id"] = known["id"] or call.id or new_call_id()
            if function is not None:
                known["name"] = known["name"] or function.name or ""
                known["arguments"] += function.arguments or ""
        pieces += self._complete(len(self._calls) - 1, "stop")
        if self._named < len(self._calls) and (latest := self._calls[-1])["name"]:
            self._named = len(self._calls)
            pieces.append(CallStart(latest["name"], latest["id"]))
        return pieces

    def _complete(self, until: int, finish_reason: str) -> list[ParsedCall]:
        """Calls before this index that were not given yet: another one has begun after them, or all is over."""
        ready = self._calls[self._given : max(until, self._given)]
        self._given += len(ready)
        return [_parsed(call, finish_reason) for call in ready]


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _structural_tag(structured: Any, lead: Callable[[Mapping[str, Any]], dict[str, Any]] | None) -> str:
    """vLLM's ``StructuredOutputsParams`` of any kind as a structural tag."""
    from vllm.parser.abstract_parser import structured_outputs_to_format

    answer = structured_outputs_to_format(structured)
    assert answer is not None, "these parameters hold a constraint"
    format = answer.model_dump()
    return json.dumps({"type": "structural_tag", "format": format if lead is None else lead(format)})


def _parsed(call: Mapping[str, str], finish_reason: str) -> ParsedCall:
    call_id, name, text = call["id"], call["name"] or None, call["arguments"]
    try:
        arguments = json.loads(text or "{}", strict=False)
        if not isinstance(arguments, dict) or name is None:
            raise ValueError("a call has a name, and an object as its arguments")
    except ValueError as problem:
        rule = f"the call broke off (finish_reason={finish_reason!r}): raise max_tokens"
        raw = f'{CALL_OPEN}\n{{"name": {json.dumps(name)}, "arguments": {text}'  # begins with no JSON: see ChunkWriter
        return ParsedCall(name, None, raw, rule if finish_reason == "length" else str(problem), call_id)
    return ParsedCall(name, arguments, text, None, call_id)


def _openai_choice(choice: ToolChoice) -> Any:
    if choice.mode == "required" and len(choice.names) == 1:
        return {"type": "function", "function": {"name": choice.names[0]}}
    return choice.mode


@lru_cache(maxsize=32)
def _parser_class(tool_parser: str | None, reasoning_parser: str | None) -> Any:
    """The composed parser's class. Arguments of calls are held to their schemas, as by the native grammar."""
    try:
        import vllm.parser  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(
            where=f"tool_parser={tool_parser!r}, reasoning_parser={reasoning_parser!r}",
            rule=f"vLLM's parsers cannot be imported here ({error})",
            remedy="Install vLLM 0.32 here too, or use tool_parser='native' and reasoning_parser='native' or None.",
        ) from error
    from vllm.parser import ParserManager
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    for kind, name, manager in (
        ("tool", tool_parser, ToolParserManager),
        ("reasoning", reasoning_parser, ReasoningParserManager),
    ):
        known = sorted(manager.list_registered())
        if name is not None and name not in known:
            raise ConfigError(
                where=f"{kind}_parser={name!r}",
                rule="vLLM has no parser of this name",
                remedy=f"Use 'auto', 'native', None, or one of {', '.join(known)}.",
            )
    composed = ParserManager.get_parser(
        tool_parser_name=tool_parser,
        reasoning_parser_name=reasoning_parser,
        enable_auto_tools=True,
        is_harmony=tool_parser == "openai",  # gpt-oss: one parser for channels and calls
        tool_strict_level="parameter",
    )
    assert composed is not None, "one of the two was named"
    return composed
