"""A chat model without an engine: it writes down what ChatMemDecay makes of each call, and answers from a script."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import Field

from memdecay_adapters import ChatMemDecay
from memdecay_adapters.langchain.call_settings import CALL_KEYS, CallSettings, resolve_call
from memdecay_adapters.langchain.regions import infer_parts
from memdecay_adapters.langchain.run_metadata import metadata_of
from memdecay_adapters.langchain.tags import TAG_KEY
from memdecay_agents import FixedBudget, MemDecayConfig

Script = Callable[[Sequence[BaseMessage], Sequence[str]], str | AIMessage]
"""Answer to a conversation, given the names of the bound tools; a function of these alone."""


class Call(NamedTuple):
    """One call as the engine would have seen it."""

    settings: CallSettings
    regions: tuple[tuple[str, ...], ...]
    """Regions of each message's text, in order."""
    keywords: Mapping[str, Any]
    metadata: Mapping[str, Any]

    @property
    def agent(self) -> str:
        return self.settings.agent

    @property
    def budget_tokens(self) -> int | None:
        budget = self.settings.budget
        return budget.tokens if isinstance(budget, FixedBudget) else None


def echo(messages: Sequence[BaseMessage], tools: Sequence[str]) -> str:
    """Answer with the last message's text and how many messages there were."""
    return f"{messages[-1].text} [{len(messages)}]"


class Recorder(ChatMemDecay):
    """`ChatMemDecay` with its tools, metadata and settings, and a script in place of the engine."""

    script: Script = echo
    calls: list[Call] = Field(default_factory=list)

    def _answer(self, messages: Sequence[BaseMessage], run_manager: Any, call: Mapping[str, Any]) -> AIMessage:
        metadata = metadata_of(run_manager)
        config = self.config or MemDecayConfig()
        own = {key: value for key, value in call.items() if key in CALL_KEYS}
        settings = resolve_call(metadata, own, self._model_defaults(), config)
        parts = (infer_parts(message, config.region_names) for message in messages)
        regions = tuple(tuple(dict.fromkeys(part.label.region for part in m.text)) for m in parts)
        self.calls.append(Call(settings, regions, dict(call), metadata))
        answer = self.script(messages, [tool["function"]["name"] for tool in call.get("tools") or ()])
        message = AIMessage(answer) if isinstance(answer, str) else answer.model_copy()
        if settings.explicit_region:
            message.additional_kwargs = {TAG_KEY: [{"region": settings.output_region, "source": "node"}]}
        return message

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._answer(messages, run_manager, kwargs))])

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return self._generate(messages, stop, run_manager, **kwargs)

    def _stream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        answer = self._answer(messages, run_manager, kwargs)
        for word in answer.text.split(" ") if answer.text else ():
            yield ChatGenerationChunk(message=AIMessageChunk(word + " "))
        calls = [
            {"name": c["name"], "args": _dumps(c["args"]), "id": c["id"], "index": i, "type": "tool_call_chunk"}
            for i, c in enumerate(answer.tool_calls)
        ]
        tags = answer.additional_kwargs
        yield ChatGenerationChunk(
            message=AIMessageChunk("", tool_call_chunks=calls, additional_kwargs=tags, chunk_position="last")
        )

    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._stream(messages, stop, run_manager, **kwargs):
            yield chunk


def _dumps(arguments: Any) -> str:
    import json

    return json.dumps(arguments)
