"""From what the engine generated to LangChain messages: whole, or chunk by chunk."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from memdecay_adapters.langchain.answer_reader import AnswerReader, Piece, collect
from memdecay_adapters.langchain.tags import TAG_KEY
from memdecay_adapters.langchain.think_reader import Reasoning
from memdecay_adapters.langchain.tool_parsing import CallStart, ParsedCall
from memdecay_adapters.langchain.usage import response_metadata, usage_metadata

if TYPE_CHECKING:
    from memdecay_adapters.engine import GenerationChunk, GenerationResult
    from memdecay_adapters.langchain.chat_request import ChatRequest

REASONING_KEY = "reasoning_content"
"""Key of ``additional_kwargs`` that holds reasoning: ``content_blocks`` shows it as a reasoning block."""


def chat_result(
    request: ChatRequest,
    chunks: Iterable[GenerationChunk],
    result: GenerationResult,
    model_name: str,
    more: Mapping[str, Any] | None = None,
) -> ChatResult:
    """Return the whole answer: text, reasoning, calls, invalid calls, usage, metadata, and its region as a tag.

    Args:
        request: what was asked.
        chunks: what the engine generated, in the pieces of its stream.
        result: how it ended.
        model_name: for the metadata.
        more: the same, beside the retention summary.
    """
    reader = request.reader()
    pieces: list[Piece] = []
    for chunk in chunks:
        pieces.extend(reader.feed(chunk.text, chunk.token_ids))
    answer = collect([*pieces, *reader.finish(result.finish_reason)])
    metadata, usage = _about(request, result, model_name, answer.calls, reader, more)
    message = AIMessage(
        content=answer.text,
        tool_calls=[tool_call(name=c.name or "", args=c.arguments or {}, id=c.id) for c in answer.calls if c.valid],
        invalid_tool_calls=[
            invalid_tool_call(name=c.name, args=c.raw, id=c.id, error=c.error) for c in answer.calls if not c.valid
        ],
        additional_kwargs=({REASONING_KEY: answer.reasoning} if answer.reasoning else {}) | _tag(request),
        response_metadata=metadata,
        usage_metadata=usage,
    )
    generation_info = {"finish_reason": metadata["finish_reason"]}
    return ChatResult(generations=[ChatGeneration(message=message, generation_info=generation_info)])


class ChunkWriter:
    """Turns a stream of text into message chunks; a tool call is two: its name, and its arguments once complete.

    Arguments are not written while they grow: merged chunks are completed to JSON, and a call that broke off would
    pass for a whole one.
    """

    def __init__(self, request: ChatRequest, model_name: str) -> None:
        """Write for one request."""
        self._request = request
        self._model_name = model_name
        self._reader = request.reader()
        self._calls: list[ParsedCall] = []
        self._started: str | None = None

    def feed(self, chunk: GenerationChunk) -> Iterator[ChatGenerationChunk]:
        """Chunks of what a piece of the answer brings."""
        yield from self._chunks(self._reader.feed(chunk.text, chunk.token_ids))

    def finish(self, result: GenerationResult, more: Mapping[str, Any] | None = None) -> Iterator[ChatGenerationChunk]:
        """The rest, and the last chunk with usage, metadata and the tag: a tag stands on ONE chunk."""
        yield from self._chunks(self._reader.finish(result.finish_reason))
        metadata, usage = _about(self._request, result, self._model_name, self._calls, self._reader, more)
        last = AIMessageChunk(
            content="",
            additional_kwargs=_tag(self._request),
            response_metadata=metadata,
            usage_metadata=usage,
            chunk_position="last",
        )
        yield ChatGenerationChunk(message=last, generation_info={"finish_reason": metadata["finish_reason"]})

    def _chunks(self, found: Sequence[Piece]) -> Iterator[ChatGenerationChunk]:
        for piece in found:
            if isinstance(piece, str):
                yield ChatGenerationChunk(message=AIMessageChunk(content=piece))
                continue
            if isinstance(piece, Reasoning):
                thought = AIMessageChunk(content="", additional_kwargs={REASONING_KEY: piece.text})
                yield ChatGenerationChunk(message=thought)
                continue
            index = len(self._calls)
            if isinstance(piece, CallStart):
                self._started = piece.id
                call = tool_call_chunk(name=piece.name, args="", id=piece.id, index=index)
            else:
                # The raw text of an invalid call begins with a tag, which no completion turns into an object.
                arguments = json.dumps(piece.arguments, ensure_ascii=False) if piece.valid else piece.raw
                known = self._started == piece.id
                name, call_id = (None, None) if known else (piece.name, piece.id)
                call = tool_call_chunk(name=name, args=arguments, id=call_id, index=index)
                self._calls.append(piece)
            yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[call]))


def _about(
    request: ChatRequest,
    result: GenerationResult,
    model_name: str,
    calls: Sequence[ParsedCall],
    reader: AnswerReader,
    more: Mapping[str, Any] | None,
) -> tuple[dict[str, Any], UsageMetadata]:
    complete = bool(calls) and all(call.valid for call in calls)
    metadata = response_metadata(result, model_name, complete, request.with_logprobs, request.engine.tokenizer, more)
    reasoning = reader.reasoning_tokens if request.format.parsers.reasoning is not None else None
    return metadata, usage_metadata(result, reasoning)


def _tag(request: ChatRequest) -> dict[str, Any]:
    """The region that somebody named for this answer, in the form of a node's stamp."""
    if not request.settings.explicit_region:
        return {}
    return {TAG_KEY: [{"region": request.settings.output_region, "source": "node"}]}
