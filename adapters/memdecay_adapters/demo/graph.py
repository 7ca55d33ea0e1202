"""The agent: planner -> worker -> tools -> answer, each node under its own budget and pins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, SystemMessage
from langchain_core.tools import BaseTool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode

from memdecay_adapters.demo.scenario import PLAN_NOTE, SYSTEM_PROMPT
from memdecay_adapters.langchain.chat_model import ChatMemDecay
from memdecay_adapters.langgraph.wrap import wrap

PINS = ("system", "plan")
AGENTS = ("planner", "worker", "answer")


def build_agent(
    llm: ChatMemDecay, tools: Sequence[BaseTool], budgets_tokens: dict[str, int | None]
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Build and wrap the agent.

    Args:
        llm: the chat model that all nodes share.
        tools: what the worker may call.
        budgets_tokens: budget by agent name (planner, worker, answer); None: no budget.
    """
    system = SystemMessage(SYSTEM_PROMPT)
    calling = llm.bind_tools(list(tools), tool_choice="any")

    def planner(state: MessagesState) -> dict[str, Any]:
        plan = llm.invoke([system, *state["messages"]], max_tokens=24)
        is_first = not any(isinstance(message, AIMessage) for message in state["messages"])
        text = f"Plan: {plan.text.strip()}" + (f"\n{PLAN_NOTE}" if is_first else "")
        return {"messages": [AIMessage(text)]}

    def worker(state: MessagesState) -> dict[str, Any]:
        return {"messages": [calling.invoke([system, *state["messages"]], max_tokens=48)]}

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [llm.invoke([system, *state["messages"]], max_tokens=32)]}

    graph = StateGraph(MessagesState)
    graph.add_node("planner", planner)
    graph.add_node("worker", worker)
    graph.add_node("tools", ToolNode(list(tools)))
    graph.add_node("answer", answer)
    graph.add_edge(START, "planner")
    graph.add_edge("planner", "worker")
    graph.add_edge("worker", "tools")
    graph.add_edge("tools", "answer")
    graph.add_edge("answer", END)

    settings: dict[str, dict[str, Any]] = {
        name: {"agent": name, "budget": budgets_tokens[name], "pin": list(PINS)} for name in AGENTS
    }
    settings["planner"]["output_region"] = "plan"
    wrapped: CompiledStateGraph[Any, Any, Any, Any] = wrap(graph, nodes=settings).compile()
    return wrapped
