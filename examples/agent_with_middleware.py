"""LangChain's ``create_agent`` under a KV-cache budget: one more middleware, the last in the list.

The second middleware makes the agent call the tool first and answer then, so that even a small model does.
Run: python examples/agent_with_middleware.py
"""

from typing import Any, Literal

from langchain.agents import create_agent
from langchain.agents.middleware import ContextEditingMiddleware, ModelRequest, wrap_model_call
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool

from memdecay_adapters import ChatMemDecay, MemDecayMiddleware


@tool
def search(topic: Literal["loading", "storing", "weighing"]) -> str:
    """Search the handbook of the warehouse."""
    rules = ["is loaded last", "stays dry", "is weighed at the gate", "needs two people"]
    return "\n".join(f"Rule {n}: what is in hall {n % 7} {rules[n % 4]}; it concerns {topic}." for n in range(40))


@wrap_model_call
def search_then_answer(request: ModelRequest[Any], handler: Any) -> Any:
    """Call a tool until there is a result, then answer."""
    found = any(isinstance(message, ToolMessage) for message in request.messages)
    return handler(request.override(tool_choice="none" if found else "any"))


def build() -> Any:
    """The agent."""
    return create_agent(
        ChatMemDecay(max_tokens=40),
        [search],
        system_prompt="You are the clerk of a warehouse. The gate closes at six.",
        name="clerk",
        middleware=[
            ContextEditingMiddleware(),
            search_then_answer,
            MemDecayMiddleware(budget=384, pin=["system"], tool_regions={"search": "retrieval"}),
        ],
    )


def main() -> None:
    """Ask once and print what the cache held of each call."""
    state = build().invoke({"messages": [("user", "How are drums loaded?")]})
    for message in state["messages"]:
        if kept := message.response_metadata.get("memdecay"):
            print(f"{kept['agent']}: {message.text.strip() or message.tool_calls[0]['name']}")
            print(f"  tokens by region: {kept['tokens_by_region']}")
            print(f"  held {kept['pages_held']} of {kept['pages_total']} pages, budget {kept['budget_pages']}")
            print(f"  freed by region: {kept['freed_by_region']}")


if __name__ == "__main__":
    main()
