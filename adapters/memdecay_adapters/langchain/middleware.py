"""Middleware that gives the model calls of a ``create_agent`` agent their budget, pins and regions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AnyMessage, ToolMessage
from langchain_core.runnables import RunnableBinding

from memdecay_adapters.langchain.call_settings import NODE_KEYS
from memdecay_adapters.langchain.marking import mark
from memdecay_adapters.langchain.units import with_tool_names
from memdecay_adapters.langgraph.metadata import NodeSettings, check_regions, merge_settings, parse_settings
from memdecay_adapters.langgraph.stamp import is_tagged
from memdecay_adapters.langgraph.state_graph import UNSET, Unset
from memdecay_agents.agent_budgets import AgentBudget
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import UnsupportedError

try:
    from langchain.agents.middleware.types import (
        AgentMiddleware,
        AgentState,
        ModelCallResult,
        ModelRequest,
        ModelResponse,
    )
except ImportError as error:
    raise UnsupportedError(
        where="MemDecayMiddleware",
        rule="needs the package langchain (1.2 or newer), whose create_agent it is for",
        remedy="Install memdecay-agents[agents]; graphs without create_agent need only wrap().",
    ) from error

_WHERE = "MemDecayMiddleware"


class MemDecayMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """Settings of an agent's model calls, beside the agent's other middleware.

    Put it LAST in the list: it then stands next to the model and sees what the others made of the request::

        create_agent(
            ChatMemDecay(),
            tools,
            middleware=[TodoListMiddleware(), SummarizationMiddleware(...), MemDecayMiddleware(budget=4096)],
        )

    What it says counts as keywords of the call: it wins over the graph's metadata and the model's budgets, and
    yields to ``model_settings`` that another middleware wrote. Nothing of it enters the agent's state. A chat model
    that is not MemDecay's is called as if it were not there. Summaries that ``SummarizationMiddleware`` asks for
    are calls of their own: they have no budget and no session.
    """

    def __init__(
        self,
        *,
        budget: int | AgentBudget | Unset | None = UNSET,
        pin: Sequence[str] | str | Unset = UNSET,
        agent: str | Unset = UNSET,
        output_region: str | Unset = UNSET,
        tool_regions: Mapping[str, str] | None = None,
        config: MemDecayConfig | None = None,
    ) -> None:
        """Set up.

        Args:
            budget: KV-cache budget of the agent's session: a number of tokens, `FixedBudget`, `ContextFraction` or
                `PoolShare`; None: no budget. Not given: what the graph or the model says.
            pin: regions whose pages are never evicted in this agent's sessions.
            agent: agent that the calls belong to, in place of the agent's own name or its path in the graph.
            output_region: region of the answers' text.
            tool_regions: region of a tool's results, by the tool's name (``{"search": "retrieval"}``); a result that
                carries a tag keeps it.
            config: configuration whose regions may be named; the default one knows the seven regions.

        Raises:
            ConfigError: a setting that does not hold. RegionError: an unknown region.
        """
        super().__init__()
        given = {"budget": budget, "pin": pin, "agent": agent, "output_region": output_region}
        self._settings = parse_settings({k: v for k, v in given.items() if not isinstance(v, Unset)}, _WHERE)
        self._tool_regions = dict(tool_regions or {})
        self._config = config or MemDecayConfig()
        known = self._config.region_names
        check_regions(self._settings, known, _WHERE)
        for tool, region in self._tool_regions.items():
            check_regions(NodeSettings(output_region=region), known, f"{_WHERE}(tool_regions[{tool!r}])")

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelCallResult[Any]:
        """Call the model with the settings."""
        return handler(self._prepared(request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelCallResult[Any]:
        """The same, async."""
        return await handler(self._prepared(request))

    def _prepared(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        """A copy of the request with the settings and the tools' regions; another model's request as it is."""
        if not is_memdecay_model(request.model):
            return request
        said = {key: value for key, value in request.model_settings.items() if key in NODE_KEYS}
        others = {key: value for key, value in request.model_settings.items() if key not in NODE_KEYS}
        settings = merge_settings(self._settings, parse_settings(said, "model_settings"))
        return request.override(
            model_settings={**others, **settings.as_metadata()},
            messages=self._tagged(request.messages),
        )

    def _tagged(self, messages: Sequence[AnyMessage]) -> list[AnyMessage]:
        tagged = list(messages)
        for place, named in enumerate(with_tool_names(messages)) if self._tool_regions else ():
            region = self._tool_regions.get(named.name or "") if isinstance(named, ToolMessage) else None
            if region is not None and not is_tagged(messages[place]):
                tagged[place] = mark(messages[place], region, config=self._config)
        return tagged


def is_memdecay_model(model: Any) -> bool:
    """Return whether a chat model, or what it is bound to, reads MemDecay's settings."""
    while isinstance(model, RunnableBinding):
        model = model.bound
    return str(getattr(model, "_llm_type", "")).startswith("memdecay")
