"""Graphs of one node, a chat model that records what it is told, and the regions of messages."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import START, MessagesState, StateGraph

from memdecay_adapters.langgraph.metadata import call_metadata

PLAN = {"planner": {"output_region": "plan", "pin": ["system", "plan"], "budget": 4096, "agent": "boss"}}


class Probe(BaseChatModel):
    """A chat model that records the run metadata of each call and answers with fixed text."""

    seen: list[dict[str, Any]]

    @property
    def _llm_type(self) -> str:
        return "probe"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        self.seen.append(call_metadata(run_manager.metadata))
        return ChatResult(generations=[ChatGeneration(message=AIMessage("an answer"))])

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.bind(tools=tools)


def probe() -> Probe:
    return Probe(seen=[])


def region_of(message: BaseMessage) -> str | None:
    tags = message.additional_kwargs.get("memdecay")
    return tags[0]["region"] if tags else None


def regions(result: dict[str, Any]) -> list[str | None]:
    return [region_of(m) for m in result["messages"]]


def one_node(body: Any, state: Any = MessagesState) -> StateGraph[Any, Any, Any, Any]:
    builder = StateGraph(state)
    builder.add_node("planner", body)
    builder.add_edge(START, "planner")
    return builder


def sync_node(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage("plan")]}


async def async_node(state: MessagesState) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"messages": [AIMessage("plan")]}
