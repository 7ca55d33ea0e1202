"""ChatMemDecay: a LangChain chat model on an embedded vLLM engine that evicts pages by region.

The model is the only reader of tags and of node settings. It holds no state of a call: parallel branches of
a graph may share one instance. Importing this module imports no vLLM; the engine starts at the first call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.base import LangSmithParams
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.language_models.model_profile import ModelProfile
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config
from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from memdecay_adapters.langchain.call_settings import ModelDefaults
from memdecay_adapters.langchain.chat_output import ChunkWriter, chat_result
from memdecay_adapters.langchain.chat_request import ChatRequest, build_request
from memdecay_adapters.langchain.model_info import check_fields, model_profile, per_call_model
from memdecay_adapters.langchain.prompt import build_prompt
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
from memdecay_adapters.langchain.usage import PROVIDER
from memdecay_agents.config import MemDecayConfig

if TYPE_CHECKING:
    from memdecay_adapters.engine import MemDecayEngine

_SAMPLING_FIELDS = (
    "temperature", "max_tokens", "stop", "seed", "top_p", "top_k", "min_p", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "logprobs", "top_logprobs",
)  # fmt: skip


class ChatMemDecay(BaseChatModel):
    """Chat model whose KV cache keeps what an agent still needs within a budget, by region.

    Example::

        llm = ChatMemDecay(default_budget=4096, budgets={"supervisor|*": 2048}, pin=("system",))
        llm.invoke("Hello")

    Keywords of a call (``invoke``, ``bind``): any sampling field, vLLM's further sampling names, ``tools``,
    ``tool_choice``, ``response_format``, and the node settings ``agent``, ``pin``, ``budget``,
    ``output_region``, ``thread_id``; they win over everything else.
    """

    model: str | None = None
    """Hugging Face id or local folder; None: the default small model, which needs no hub."""
    engine: Any = Field(default=None, exclude=True, repr=False)
    """A `MemDecayEngine` to share; None: one engine per equal ``model``, ``config`` and ``engine_args``,
    started at the first call and shared in this process."""
    config: MemDecayConfig | None = None
    """Regions, policy and page size of the engine that is started; an ``engine`` brings its own."""
    engine_args: dict[str, Any] = Field(default_factory=dict)
    """vLLM's engine arguments for the engine that is started."""
    tenant: str = "default"
    """Whose data this is; sessions of different tenants share nothing."""

    default_budget: int | None = Field(default=None, ge=1)
    """KV-cache budget of an agent's session in tokens; None: the configuration's default."""
    budgets: dict[str, int | None] = Field(default_factory=dict)
    """Budget in tokens by glob on the agent path (``{"supervisor|*": 2048}``); the first match counts, None: no
    budget."""
    pin: tuple[str, ...] = ()
    """Regions pinned where neither the graph nor the call names pins."""
    default_output_region: str | None = None
    """Region of answers where the graph names none; None: scratchpad."""

    temperature: float = 0.0
    """0: the most likely token, always."""
    max_tokens: int | None = None
    """Most tokens of an answer; None: 512, or what the model's length leaves room for."""
    stop: list[str] | None = Field(default=None, alias="stop_sequences")
    """Strings that end an answer; they are not part of it."""
    seed: int | None = None
    """Seed of the sampling of each call."""
    top_p: float | None = None
    """Nucleus sampling; see vLLM's SamplingParams for this and the next."""
    top_k: int | None = None
    """Sample among this many tokens."""
    min_p: float | None = None
    """Least probability relative to the best token's."""
    presence_penalty: float | None = None
    """Penalty on tokens that have occurred."""
    frequency_penalty: float | None = None
    """Penalty on tokens by how often they have occurred."""
    repetition_penalty: float | None = None
    """Factor on tokens that have occurred, prompt included."""
    logprobs: bool | int | None = None
    """Return log-probabilities in ``response_metadata["logprobs"]``; a number: with so many alternatives."""
    top_logprobs: int | None = None
    """Alternatives per token, beside ``logprobs=True`` (OpenAI's name)."""
    chat_template: str | None = None
    """Template in place of the tokenizer's."""

    model_config = {"populate_by_name": True, "arbitrary_types_allowed": True, "extra": "forbid"}

    @field_validator("pin", mode="before")
    @classmethod
    def _pin_as_tuple(cls, pin: Any) -> Any:
        return (pin,) if isinstance(pin, str) else tuple(pin) if isinstance(pin, (list, set)) else pin

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_fields(self)
        return self

    # ---- the engine

    def get_engine(self) -> MemDecayEngine:
        """Return the engine, started if need be. Takes seconds the first time."""
        if self.engine is not None:
            return cast("MemDecayEngine", self.engine)
        from memdecay_adapters.engine import shared_engine

        return shared_engine(self.model, self.config, self.engine_args)

    async def aget_engine(self) -> MemDecayEngine:
        """The same; the event loop runs on while the engine starts."""
        return self.get_engine() if self.engine is not None else await asyncio.to_thread(self.get_engine)

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
            return chat_result(request, stream.result(), self.model_name)
        finally:
            stream.abort()  # interrupted while waiting; else it has ended and this does nothing

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        request = self._request(await self.aget_engine(), messages, stop, metadata_of(run_manager), kwargs)
        return chat_result(request, await request.submit().aresult(), self.model_name)

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
                yield from writer.feed(chunk.text)
            yield from writer.finish(stream.result())
        finally:
            stream.abort()

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        request = self._request(await self.aget_engine(), messages, stop, metadata_of(run_manager), kwargs)
        stream, writer = request.submit(), ChunkWriter(request, self.model_name)
        try:
            async for chunk in stream:
                for piece in writer.feed(chunk.text):
                    yield piece
            for piece in writer.finish(await stream.aresult()):
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
            sampling_defaults={name: getattr(self, name) for name in _SAMPLING_FIELDS},
            defaults=ModelDefaults(
                self.tenant, self.default_budget, self.budgets, self.pin, self.default_output_region
            ),
            chat_template=self.chat_template,
        )

    # langchain-core calls _stream without a run manager: its metadata goes the other way round.

    def _generate_with_cache(self, *args: Any, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        with carrying(getattr(run_manager, "metadata", None)):
            return super()._generate_with_cache(*args, run_manager=run_manager, **kwargs)

    async def _agenerate_with_cache(self, *args: Any, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        with carrying(getattr(run_manager, "metadata", None)):
            return await super()._agenerate_with_cache(*args, run_manager=run_manager, **kwargs)

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
        traced = {"ls_structured_output_format": {"kwargs": {"method": method}, "schema": schema}}
        if method == "json_mode":
            model: Any = self.bind(response_format={"type": "json_object"}, **traced, **kwargs)
        elif method == "function_calling":
            tool = openai_tools([schema], strict)[0]
            model = self.bind_tools([tool], tool_choice=tool["function"]["name"], **traced, **kwargs)
        else:
            model = self.bind(response_format=response_format_of(cast(Schema, schema)), **traced, **kwargs)
        return structured_chain(model, schema, include_raw)

    # ---- counting tokens

    def get_token_ids(self, text: str) -> list[int]:
        """Token ids of a text with the model's own tokenizer, without special tokens."""
        return list(self.get_engine().tokenizer(text, add_special_tokens=False)["input_ids"])

    def get_num_tokens_from_messages(
        self, messages: list[BaseMessage], tools: Sequence[ToolLike] | None = None
    ) -> int:
        """Tokens of the prompt that these messages and tools become, template and tool schemas included."""
        engine = self.get_engine()
        prompt = build_prompt(
            messages,
            engine.tokenizer,
            tools=openai_tools(tools) if tools else None,
            config=engine.config,
            chat_template=self.chat_template,
        )
        return len(prompt.token_ids)

    # ---- what the model is

    @property
    def model_name(self) -> str:
        """Name of the model in messages and traces."""
        if self.engine is not None:
            return str(self.engine.model_name)
        from memdecay_adapters.models import DEFAULT_MODEL_NAME

        return self.model or DEFAULT_MODEL_NAME

    @property
    def _llm_type(self) -> str:
        return "memdecay-chat"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """All that shapes an answer: also the key of LangChain's cache."""
        config = self.engine.config if self.engine is not None else self.config
        return {
            "model": self.model_name,
            **{name: value for name in _SAMPLING_FIELDS if (value := getattr(self, name)) is not None},
            "default_budget": self.default_budget,
            "budgets": dict(self.budgets),
            "pin": list(self.pin),
            "default_output_region": self.default_output_region,
            "config": (config or MemDecayConfig()).model_dump(mode="json"),
            "chat_template": self.chat_template,
        }

    def _resolve_model_profile(self) -> ModelProfile | None:
        return model_profile(self)

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = PROVIDER
        params["ls_model_name"] = str(kwargs.get("model") or self.model_name)
        if stops := stop or self.stop:
            params["ls_stop"] = stops
        return params
