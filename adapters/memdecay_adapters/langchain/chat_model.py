"""ChatMemDecay: a LangChain chat model on an embedded vLLM engine that evicts pages by region.

The model is the only reader of tags and of node settings. It holds no state of a call: parallel branches of
a graph may share one instance. Importing this module imports no vLLM; the engine starts at the first call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config

from memdecay_adapters.langchain.chat_fields import ChatMemDecayFields
from memdecay_adapters.langchain.chat_output import ChunkWriter, chat_result
from memdecay_adapters.langchain.chat_request import ChatRequest, build_request
from memdecay_adapters.langchain.model_info import per_call_model
from memdecay_adapters.langchain.run_metadata import acarry_through, carry_through, carrying, metadata_of
from memdecay_adapters.langchain.structured_output import (
    Schema,
    StructuredMethod,
    response_format_of,
    structured_chain,
)
from memdecay_adapters.langchain.tool_choice import (
    RawToolChoice,
    ToolLike,
    check_tool_choice,
    openai_tools,
)
from memdecay_agents.errors import ExplainError, MemDecayError

if TYPE_CHECKING:
    from memdecay_adapters.engine import GenerationResult, MemDecayEngine
    from memdecay_agents.explanation import SessionExplanation

logger = logging.getLogger(__name__)

EXPLANATION_KEY = "explanation"
"""Key in ``response_metadata["memdecay"]``, where ``explain`` is on."""


_begun: set[tuple[Any, ...]] = set()
"""Kinds of requests that have been made once in this process: what they import is there."""


class ChatMemDecay(ChatMemDecayFields):
    """Chat model whose KV cache keeps what an agent still needs within a budget, by region.

    Example::

        llm = ChatMemDecay(default_budget=4096, budgets={"supervisor|*": 2048}, pin=("system",))
        llm.invoke("Hello")

    Keywords of a call (``invoke``, ``bind``): any sampling field, vLLM's further sampling names, ``tools``,
    ``tool_choice``, ``response_format``, and the node settings ``agent``, ``pin``, ``budget``,
    ``output_region``, ``thread_id``; they win over everything else.
    """

    # ---- generating

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        request = self._request(self.get_engine(), messages, stop, metadata_of(run_manager), kwargs)
        stream = request.submit()
        try:
            result = stream.result()
            more = self._explanation(request, result)
            return chat_result(request, stream, result, self.model_name, more)  # its chunks wait in the stream
        finally:
            stream.abort()  # interrupted while waiting; else it has ended and this does nothing

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        request = await self._arequest(await self.aget_engine(), messages, stop, metadata_of(run_manager), kwargs)
        stream = request.submit()
        result = await stream.aresult()
        return chat_result(request, stream, result, self.model_name, await self._aexplanation(request, result))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        request = self._request(self.get_engine(), messages, stop, metadata_of(run_manager), kwargs)
        stream, writer = request.submit(), ChunkWriter(request, self.model_name)
        try:
            for chunk in stream:
                yield from writer.feed(chunk)
            result = stream.result()
            yield from writer.finish(result, self._explanation(request, result))
        finally:
            stream.abort()

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        request = await self._arequest(await self.aget_engine(), messages, stop, metadata_of(run_manager), kwargs)
        stream, writer = request.submit(), ChunkWriter(request, self.model_name)
        try:
            async for chunk in stream:
                for piece in writer.feed(chunk):
                    yield piece
            result = await stream.aresult()
            for piece in writer.finish(result, await self._aexplanation(request, result)):
                yield piece
        finally:
            stream.abort()

    def _request(
        self,
        engine: MemDecayEngine,
        messages: list[BaseMessage],
        stop: list[str] | None,
        metadata: Mapping[str, Any],
        call: Mapping[str, Any],
    ) -> ChatRequest:
        per_call_model(self, call)
        return build_request(
            engine,
            messages,
            stop,
            call,
            metadata=metadata,
            sampling_defaults=self._sampling_defaults(),
            defaults=self._model_defaults(),
            chat_template=self.chat_template,
            rules=self.region_rules,
            tag_errors=self.tag_errors,
            tool_parser=self.tool_parser,
            reasoning_parser=self.reasoning_parser,
            time_limit_seconds=self.timeout,
            own_config=self._own_config(),
        )

    async def _arequest(self, engine: MemDecayEngine, *given: Any) -> ChatRequest:
        """`_request`; the first of its kind runs in a thread, for it loads the tokenizer or imports a parser."""
        call = given[-1]
        kind = (
            id(engine),
            self.chat_template,
            *(call.get(name, getattr(self, name)) for name in ("tool_parser", "reasoning_parser")),
            bool(call.get("tools")),
            "response_format" in call,
        )
        if kind in _begun:
            return self._request(engine, *given)
        request = await asyncio.to_thread(self._request, engine, *given)
        _begun.add(kind)
        return request

    def _explanation(self, request: ChatRequest, result: GenerationResult) -> dict[str, Any]:
        """For the metadata, where explanations are wanted."""
        if not self.explain or result.retention is None:
            return {}
        try:
            found = self._explain_session(request.engine, result.retention.session)
        except MemDecayError as error:  # nothing is known of the session any more; and no answer is lost for this
            if not isinstance(error, ExplainError):
                logger.warning("an answer goes without its explanation: %s", error)
            return {EXPLANATION_KEY: None}
        return {EXPLANATION_KEY: found.model_dump(mode="json", exclude_defaults=True)}

    async def _aexplanation(self, request: ChatRequest, result: GenerationResult) -> dict[str, Any]:
        return await asyncio.to_thread(self._explanation, request, result) if self.explain else {}

    def _explain_session(self, engine: Any, session: str) -> SessionExplanation:
        explanation: SessionExplanation = engine.explain(session)
        return explanation

    # langchain-core calls _stream without a run manager: its metadata goes the other way round.

    def _generate_with_cache(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with carrying(run_manager.metadata if run_manager else None):
            return super()._generate_with_cache(messages, stop, run_manager, **kwargs)

    async def _agenerate_with_cache(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with carrying(run_manager.metadata if run_manager else None):
            return await super()._agenerate_with_cache(messages, stop, run_manager, **kwargs)

    def stream(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[AIMessageChunk]:
        """Stream the answer; see `BaseChatModel.stream`."""
        items = super().stream(input, config, **kwargs)
        return carry_through(items, ensure_config(config).get("metadata"))

    def astream(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[AIMessageChunk]:
        """Stream the answer; see `BaseChatModel.astream`."""
        items = super().astream(input, config, **kwargs)
        return acarry_through(items, ensure_config(config).get("metadata"))

    # ---- tools and structured output

    def bind_tools(
        self,
        tools: Sequence[ToolLike],
        *,
        tool_choice: RawToolChoice = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Bind tools. The model chooses tool and arguments itself, under the grammar of all bound tools.

        Args:
            tools: functions, pydantic classes, TypedDicts, ``BaseTool``s or OpenAI schemas.
            tool_choice: None or "auto": text or calls. "any", "required", True: at least one call. A tool's
                name: exactly one call of it. "none": the tools are shown and none is called.
            strict: as OpenAI's; arguments always follow the schema here.
            **kwargs: further keywords of the calls, such as ``parallel_tool_calls=False``.

        Raises:
            ConfigError: a tool that cannot be bound, or a choice that names none of them.
        """
        schemas = openai_tools(tools, strict)
        check_tool_choice(tool_choice, [tool["function"]["name"] for tool in schemas])
        bound = {"tools": schemas, **kwargs}
        if tool_choice is not None:
            bound["tool_choice"] = tool_choice
        return self.bind(**bound)

    def with_structured_output(
        self,
        schema: Schema | None = None,
        *,
        method: StructuredMethod = "json_schema",
        include_raw: bool = False,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Return a runnable whose answers follow a schema, token by token.

        Args:
            schema: pydantic class (answers are its instances), TypedDict or JSON schema (answers are dicts);
                may be None for ``method="json_mode"``.
            method: see `StructuredMethod`.
            include_raw: return ``{"raw", "parsed", "parsing_error"}`` in place of raising.
            strict: accepted for compatibility; answers always follow the schema.
            **kwargs: further keywords of the calls, such as ``max_tokens``.

        Raises:
            ConfigError: no JSON schema can be made of ``schema``.
            OutputParserException: (when called) the answer broke off, or the class refuses its values.
        """
        traced: dict[str, Any] = {"ls_structured_output_format": {"kwargs": {"method": method}, "schema": schema}}
        if method == "json_mode":
            model: Any = self.bind(response_format={"type": "json_object"}, **traced, **kwargs)
        elif method == "function_calling":
            tool = openai_tools([schema], strict)[0]
            model = self.bind_tools([tool], tool_choice=tool["function"]["name"], **traced, **kwargs)
        else:
            model = self.bind(response_format=response_format_of(cast(Schema, schema)), **traced, **kwargs)
        return structured_chain(model, schema, include_raw)
