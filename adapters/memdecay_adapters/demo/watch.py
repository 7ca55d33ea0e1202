"""What each call of the model kept and freed, read from the messages' own metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from memdecay_adapters.engine.results import RetentionSummary
from memdecay_adapters.langchain.kept_ids import IDS_KEY


@dataclass(frozen=True)
class ModelCall:
    """One call of the model by one agent."""

    user_turn: int
    agent: str
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int
    wall_seconds: float
    tool_calls: tuple[str, ...]
    """What it called, ``name(argument='value')``."""
    retention: RetentionSummary

    @property
    def tokens_per_second(self) -> float:
        """Prompt tokens computed and tokens generated, per second of the call."""
        return (self.prompt_tokens - self.cached_tokens + self.generated_tokens) / max(self.wall_seconds, 1e-9)


class CallWatcher(BaseCallbackHandler):
    """Collects the calls; LangChain calls it after each one."""

    raise_error = True

    def __init__(self) -> None:
        self.user_turn = 0
        self.calls: list[ModelCall] = []

    def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:
        """Take down one finished call."""
        generation = response.generations[0][0]
        if not isinstance(generation, ChatGeneration) or not isinstance(generation.message, AIMessage):
            return
        message = generation.message
        about = dict(message.response_metadata["memdecay"])
        wall_seconds = about.pop("wall_seconds")
        about.pop("time_to_first_token_seconds")
        about.pop(IDS_KEY, None)
        usage = message.usage_metadata
        assert usage is not None
        self.calls.append(
            ModelCall(
                user_turn=self.user_turn,
                agent=about["agent"],
                prompt_tokens=usage["input_tokens"],
                generated_tokens=usage["output_tokens"],
                cached_tokens=usage["input_token_details"]["cache_read"],
                wall_seconds=wall_seconds,
                tool_calls=tuple(
                    f"{call['name']}({', '.join(f'{k}={v!r}' for k, v in call['args'].items())})"
                    for call in message.tool_calls
                ),
                retention=RetentionSummary.from_dict(about),
            )
        )
