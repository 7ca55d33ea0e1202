"""Fields of the chat model, its engine, and what it says about itself."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from langchain_core.language_models.base import LangSmithParams
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.language_models.model_profile import ModelProfile
from langchain_core.messages import BaseMessage
from pydantic import ConfigDict, Field, InstanceOf, SecretStr, field_validator, model_validator

from memdecay_adapters.engine.tier.settings import HostTier
from memdecay_adapters.langchain.call_settings import ModelDefaults
from memdecay_adapters.langchain.model_info import check_fields, model_profile
from memdecay_adapters.langchain.parser_choice import AUTO
from memdecay_adapters.langchain.parser_import import prepare_parsers
from memdecay_adapters.langchain.prompt import TagErrors
from memdecay_adapters.langchain.region_rules import DEFAULT_RULES, RegionRules
from memdecay_adapters.langchain.run_metadata import metadata_of
from memdecay_adapters.langchain.token_count import count_prompt_tokens
from memdecay_adapters.langchain.tool_choice import ToolLike, openai_tools
from memdecay_adapters.langchain.usage import PROVIDER
from memdecay_adapters.langgraph.identity import agent_path
from memdecay_adapters.langgraph.metadata import settings_from_metadata
from memdecay_agents.agent_budgets import AgentBudget, as_budget
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ConfigError

if TYPE_CHECKING:
    from memdecay_adapters.engine import MemDecayEngine

_SAMPLING_FIELDS = (
    "temperature", "max_tokens", "stop", "seed", "top_p", "top_k", "min_p", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "logprobs", "top_logprobs",
)  # fmt: skip


_MEANT = {"budget": "default_budget", "pins": "pin", "output_region": "default_output_region"}
"""Keywords of calls and nodes that are called otherwise here."""


class ChatMemDecayFields(BaseChatModel):
    """What a MemDecay chat model is configured with; `ChatMemDecay` adds the calls."""

    model: str | None = None
    """Hugging Face id or local folder; None: the default small model, which needs no hub."""
    engine: Any = Field(default=None, exclude=True, repr=False)
    """A `MemDecayEngine` to share; None: one engine per equal ``model``, ``config``, ``engine_args`` and ``host_tier``,
    started at the first call and shared in this process."""
    config: MemDecayConfig | None = None
    """Regions, policy and page size of the engine that is started; an ``engine`` brings its own."""
    engine_args: dict[str, Any] = Field(default_factory=dict)
    """vLLM's engine arguments for the engine that is started."""
    host_tier: HostTier | None = None
    """Where the engine that is started keeps evicted pages, and how they come back; None: they are gone."""
    tenant: str = "default"
    """Whose data this is; sessions of different tenants share nothing."""

    default_budget: AgentBudget | None = None
    """KV-cache budget of an agent's session: a number of tokens, `FixedBudget`, `ContextFraction` or `PoolShare`;
    None: the configuration's default."""
    budgets: dict[str, AgentBudget | None] = Field(default_factory=dict)
    """Budget by glob on the agent path (``{"supervisor|*": 2048}``); the first match counts. None: no budget."""
    rewind: Literal["continue", "recompute"] = "continue"
    """What a session does whose history was edited: go on from where the histories part, with the pages that were
    evicted before it still gone, or compute the whole prompt anew."""
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
    region_rules: InstanceOf[RegionRules] = DEFAULT_RULES
    """What region inference is told: rules for parts of texts, regions of tools, what a newer message replaces."""
    tag_errors: TagErrors = "infer"
    """A tag that cannot be used (an unknown region, one that no longer matches its text) is ignored with one warning,
    and the region is inferred ("infer": a run goes on), or it ends the call with a TagError ("raise")."""
    tool_parser: str = AUTO
    """Who reads tool calls: "native" (``<tool_call>`` JSON), the name of one of vLLM's tool parsers ("llama3_json",
    "mistral", ...), or "auto": by what the chat template writes for a call."""
    reasoning_parser: str | None = AUTO
    """Who reads reasoning, into ``additional_kwargs["reasoning_content"]``: "native" (a leading ``<think>`` block), one
    of vLLM's reasoning parsers, or "auto": by the chat template. None: it stays in the text."""
    explain: bool = False
    """Add to each answer's metadata what its session holds and freed, page by page, with the parts of each score and
    what would have kept it: ``response_metadata["memdecay"]["explanation"]``, for
    `memdecay_agents.SessionExplanation.model_validate`. Some hundred bytes a page; None where nothing is known of the
    session any more."""
    timeout: float | None = Field(default=None, alias="request_timeout", strict=True)
    """Most seconds that a call may take, waiting for its turn included; then it is aborted with a TimeLimitError."""
    max_retries: int | None = Field(default=None, ge=0)
    """Accepted for code that sets it on every model. The engine is in this process: what fails would fail again, and
    nothing is retried."""
    api_key: SecretStr | None = Field(default=None, exclude=True, repr=False)
    """Accepted for the same code; no key is needed here, and none is used."""
    streaming: bool | None = None
    """True: ``invoke`` generates through the stream too, so that callbacks see each piece; False: nothing streams."""

    model_config = ConfigDict(populate_by_name=True, arbitrary_types_allowed=True, extra="forbid")

    @field_validator("pin", mode="before")
    @classmethod
    def _pin_as_tuple(cls, pin: Any) -> Any:
        return (pin,) if isinstance(pin, str) else tuple(pin) if isinstance(pin, (list, set)) else pin

    @field_validator("default_budget", mode="before")
    @classmethod
    def _read_budget(cls, budget: Any) -> Any:
        return as_budget(budget, "ChatMemDecay(default_budget=...)")

    @field_validator("budgets", mode="before")
    @classmethod
    def _read_budgets(cls, budgets: Any) -> Any:
        if not isinstance(budgets, Mapping):
            return budgets
        return {agent: as_budget(budget, f"ChatMemDecay(budgets[{agent!r}])") for agent, budget in budgets.items()}

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_fields(self)
        if self.engine is not None:
            self._prepare(self.engine)
        return self

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, given: Any) -> Any:
        for name, meant in _MEANT.items() if isinstance(given, Mapping) else ():
            if name in given:
                raise ConfigError(where=f"{cls.__name__}({name}=...)", rule="unknown", remedy=f"Use {meant}=.")
        return given

    # ---- the engine

    def get_engine(self) -> MemDecayEngine:
        """Return the engine, started if need be. Takes seconds the first time."""
        if self.engine is not None:
            return cast("MemDecayEngine", self.engine)
        from memdecay_adapters.engine import shared_engine

        engine = shared_engine(
            self.model, self.config or MemDecayConfig(), self.engine_args, self.default_budget, self.host_tier
        )
        self._prepare(engine)
        return engine

    def _prepare(self, engine: Any) -> None:
        """Import what will read the answers of an embedded engine, in the background."""
        module = sys.modules.get("memdecay_adapters.engine.engine")
        if module is not None and isinstance(engine, module.MemDecayEngine):
            prepare_parsers(engine.tokenizer, self.chat_template, self.tool_parser, self.reasoning_parser)

    def _own_config(self) -> MemDecayConfig | None:
        """Configuration whose budgets are this model's; None: the engine's."""
        return None if self.engine is not None else self.config or MemDecayConfig()

    async def aget_engine(self) -> MemDecayEngine:
        """The same; the event loop runs on while the engine starts."""
        return self.get_engine() if self.engine is not None else await asyncio.to_thread(self.get_engine)

    def release_thread(self, thread_id: str) -> int:
        """Give back what the cache holds of a thread: call it where the thread itself is deleted
        (``checkpointer.delete_thread(thread_id)``), or when a conversation has ended.

        Returns:
            How many idle sessions of this model's tenant were given up; 0 where no engine runs.
        """
        engine = self.engine if self.engine is not None else self._running_engine()
        return 0 if engine is None or engine.closed else int(engine.close_sessions(thread_id, tenant=self.tenant))

    def _running_engine(self) -> MemDecayEngine | None:
        from memdecay_adapters.engine.shared import open_engine

        return open_engine(self.model, self.config or MemDecayConfig(), self.engine_args, self.host_tier)

    # ---- counting tokens

    def get_token_ids(self, text: str) -> list[int]:
        """Token ids of a text with the model's own tokenizer, without special tokens."""
        return list(self.get_engine().tokenizer(text, add_special_tokens=False)["input_ids"])

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[ToolLike] | None = None) -> int:
        """Tokens of the prompt that these messages and tools become, template and tool schemas included.

        Messages that are no conversation to the template, as ``trim_messages`` tries them, are counted one by one.
        """
        engine = self.get_engine()
        schemas = openai_tools(tools) if tools else None
        return count_prompt_tokens(messages, engine.tokenizer, schemas, engine.config, self.chat_template)

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
        tier = self.host_tier if self.engine is None else getattr(self.engine, "host_tier", None)  # a server tells none
        return {
            "model": self.model_name,
            **{name: value for name, value in self._sampling_defaults().items() if value is not None},
            "tenant": self.tenant,
            "default_budget": self.default_budget and self.default_budget.model_dump(),
            "budgets": {agent: budget and budget.model_dump() for agent, budget in self.budgets.items()},
            "rewind": self.rewind,
            "explain": self.explain,
            "pin": list(self.pin),
            "default_output_region": self.default_output_region,
            "region_rules": repr(self.region_rules),
            "config": (config or MemDecayConfig()).model_dump(mode="json"),
            "host_tier": tier and tier.model_dump(mode="json"),
            "chat_template": self.chat_template,
            "tool_parser": self.tool_parser,
            "reasoning_parser": self.reasoning_parser,
        }

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        """Key of LangChain's cache: an answer also belongs to the agent and the node settings it was given under."""
        metadata = metadata_of(None)
        node = (agent_path(metadata), settings_from_metadata(metadata))
        return f"{super()._get_llm_string(stop=stop, **kwargs)}---{node!r}"

    def _sampling_defaults(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _SAMPLING_FIELDS}

    def _model_defaults(self) -> ModelDefaults:
        return ModelDefaults(
            self.tenant, self.default_budget, self.budgets, self.pin, self.default_output_region, self.rewind
        )

    def _unnamed_model_max_tokens(self) -> int | None:
        """Longest sequence of the model that is meant where none is named."""
        from memdecay_adapters.models import DEFAULT_MODEL_MAX_TOKENS

        return DEFAULT_MODEL_MAX_TOKENS

    def _resolve_model_profile(self) -> ModelProfile | None:
        return model_profile(self)

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = PROVIDER
        params["ls_model_name"] = str(kwargs.get("model") or self.model_name)
        if stops := stop or self.stop:
            params["ls_stop"] = stops
        return params
