"""From what the engine generated to LangChain messages: whole, or chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from memdecay_adapters.langchain.tags import TAG_KEY
from memdecay_adapters.langchain.tool_parsing import ParsedCall, ToolCallReader, read_all
from memdecay_adapters.langchain.usage import response_metadata, usage_metadata

if TYPE_CHECKING:
    from memdecay_adapters.engine import GenerationResult
    from memdecay_adapters.langchain.chat_request import ChatRequest


def chat_result(request: ChatRequest, result: GenerationResult, model_name: str) -> ChatResult:
    """Return the whole answer: text, tool calls, invalid calls, usage, metadata, and its region as a tag."""
    text, calls = read_all(result.text, result.finish_reason, request.reads_calls)
    metadata, usage = _about(request, result, model_name, calls)
    message = AIMessage(
        content=text,
        tool_calls=[tool_call(name=c.name or "", args=c.arguments or {}, id=c.id) for c in calls if c.valid],
        invalid_tool_calls=[
            invalid_tool_call(name=c.name, args=c.raw, id=c.id, error=c.error) for c in calls if not c.valid
        ],
        additional_kwargs=_tag(request),
        response_metadata=metadata,
        usage_metadata=usage,
    )
    generation_info = {"finish_reason": metadata["finish_reason"]}
    return ChatResult(generations=[ChatGeneration(message=message, generation_info=generation_info)])


class ChunkWriter:
    """Turns a stream of text into message chunks; a tool call is one chunk, written when it is complete."""

    def __init__(self, request: ChatRequest, model_name: str) -> None:
        """Write for one request."""
        self._request = request
        self._model_name = model_name
        self._reader = ToolCallReader(request.reads_calls)
        self._calls: list[ParsedCall] = []

    def feed(self, delta: str) -> Iterator[ChatGenerationChunk]:
        """Chunks of what a piece of text brings."""
        yield from self._chunks(self._reader.feed(delta))

    def finish(self, result: GenerationResult) -> Iterator[ChatGenerationChunk]:
        """The rest, and the last chunk with usage, metadata and the tag: a tag stands on ONE chunk."""
        yield from self._chunks(self._reader.finish(result.finish_reason))
        metadata, usage = _about(self._request, result, self._model_name, self._calls)
        last = AIMessageChunk(
            content="",
            additional_kwargs=_tag(self._request),
            response_metadata=metadata,
            usage_metadata=usage,
            chunk_position="last",
        )
        yield ChatGenerationChunk(message=last, generation_info={"finish_reason": metadata["finish_reason"]})

    def _chunks(self, found: Sequence[str | ParsedCall]) -> Iterator[ChatGenerationChunk]:
        for piece in found:
            if isinstance(piece, str):
                yield ChatGenerationChunk(message=AIMessageChunk(content=piece))
                continue
            # Chunks are merged by completing their JSON. The raw text of an invalid call begins with a tag,
            # which no completion turns into an object: a call that broke off stays invalid.
            arguments = _dumps(piece.arguments) if piece.valid else piece.raw
            call = tool_call_chunk(name=piece.name, args=arguments, id=piece.id, index=len(self._calls))
            self._calls.append(piece)
            yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[call]))


def _about(
    request: ChatRequest, result: GenerationResult, model_name: str, calls: Sequence[ParsedCall]
) -> tuple[dict[str, Any], UsageMetadata]:
    complete = bool(calls) and all(call.valid for call in calls)
    tokenizer = request.engine.tokenizer if request.with_logprobs else None
    metadata = response_metadata(result, model_name, complete, request.with_logprobs, tokenizer)
    return metadata, usage_metadata(result)


def _tag(request: ChatRequest) -> dict[str, Any]:
    """The region that somebody named for this answer, in the form of a node's stamp."""
    if not request.settings.explicit_region:
        return {}
    return {TAG_KEY: [{"region": request.settings.output_region, "source": "node"}]}


def _dumps(arguments: Any) -> str:
    import json

    return json.dumps(arguments, ensure_ascii=False)
