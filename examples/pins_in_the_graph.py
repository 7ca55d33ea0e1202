"""Budgets and pins in the graph definition itself: plain node metadata, read by the chat model.

The agent calls a tool under the grammar of its schema, so that even a small model calls it correctly.
Run: python examples/pins_in_the_graph.py
"""

from typing import Any, Literal

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from memdecay_adapters import ChatMemDecay

SYSTEM = SystemMessage("You are the clerk of a warehouse. The vault code word is amber.")


@tool
def stock(hall: Literal["north", "south"]) -> str:
    """List what lies in a hall."""
    goods = ["pallets", "drums", "crates", "cable"]
    return "\n".join(f"{hall} row {row}: {goods[row % 4]}, {row * 37 % 100} pieces" for row in range(30))


llm = ChatMemDecay(max_tokens=40)
calling = llm.bind_tools([stock], tool_choice="any")


def look(state: MessagesState) -> dict[str, Any]:
    """Let the model choose the tool and its arguments."""
    return {"messages": [calling.invoke([SYSTEM, *state["messages"]])]}


def answer(state: MessagesState) -> dict[str, Any]:
    """Answer from the result."""
    return {"messages": [llm.invoke([SYSTEM, *state["messages"]])]}


def build() -> Any:
    """The agent; each node names its budget in tokens and what it pins."""
    graph = StateGraph(MessagesState)
    graph.add_node("look", look, metadata={"memdecay": {"agent": "clerk", "budget": 512}})
    graph.add_node("tools", ToolNode([stock]))
    graph.add_node("answer", answer, metadata={"memdecay": {"agent": "clerk", "budget": 320, "pin": ["system"]}})
    graph.add_edge(START, "look")
    graph.add_edge("look", "tools")
    graph.add_edge("tools", "answer")
    graph.add_edge("answer", END)
    return graph.compile()


def main() -> None:
    """Run it once and print what the answer's cache held."""
    state = build().invoke({"messages": [HumanMessage("How many drums are in the north hall?")]})
    called = state["messages"][1].tool_calls[0]
    print(f"called {called['name']}({called['args']})")
    kept = state["messages"][-1].response_metadata["memdecay"]
    print(f"tokens by region: {kept['tokens_by_region']}")
    print(f"held {kept['pages_held']} of {kept['pages_total']} pages; freed by region: {kept['freed_by_region']}")


if __name__ == "__main__":
    main()
