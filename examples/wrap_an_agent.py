"""An existing LangGraph agent, unchanged, under a KV-cache budget: wrap it and give its nodes settings.

Run: python examples/wrap_an_agent.py
"""

from typing import Any

from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.graph import END, START, MessagesState, StateGraph

from memdecay_adapters import ChatMemDecay, wrap

llm = ChatMemDecay(max_tokens=24)


def plan(state: MessagesState) -> dict[str, Any]:
    """Ask for a plan."""
    return {"messages": [llm.invoke([SystemMessage("You plan in one sentence."), *state["messages"]])]}


def answer(state: MessagesState) -> dict[str, Any]:
    """Answer from the plan."""
    return {"messages": [llm.invoke([SystemMessage("You answer in one sentence."), *state["messages"]])]}


def build() -> Any:
    """The agent as its author wrote it."""
    graph = StateGraph(MessagesState)
    graph.add_node("plan", plan)
    graph.add_node("answer", answer)
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "answer")
    graph.add_edge("answer", END)
    return graph.compile()


def main() -> None:
    """Wrap it, run it, and look at what its cache held."""
    app = wrap(
        build(),
        nodes={
            "plan": {"output_region": "plan", "budget": 512},
            "answer": {"budget": 384, "pin": ["system", "plan"]},
        },
    )
    question = "Which of the goods should be loaded first? " + "Crates, drums and pallets wait at the gate. " * 60
    state = app.invoke({"messages": [HumanMessage(question)]}, {"configurable": {"thread_id": "example"}})
    for message in state["messages"][1:]:
        kept = message.response_metadata["memdecay"]
        print(f"{kept['agent']}: {message.text.strip()}")
        print(f"  held {kept['pages_held']} of {kept['pages_total']} pages, budget {kept['budget_pages']}")
        print(f"  freed by region: {kept['freed_by_region']}")


if __name__ == "__main__":
    main()
