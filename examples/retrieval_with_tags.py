"""A retrieval-augmented agent: passages and question stand in one message, each under a tag of its own.

Run: python examples/retrieval_with_tags.py
"""

from typing import Any

from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.graph import START, MessagesState

from memdecay_adapters import ChatMemDecay, MemDecayStateGraph, tag

PASSAGES = [
    f"Crate {n} holds {goods}; it was packed in hall {n % 5} and weighs {n * 7 % 90 + 10} kilograms."
    for n, goods in enumerate(["pears", "cable", "lamps", "glass", "paper", "rope"] * 8)
]
llm = ChatMemDecay(max_tokens=24)


def retrieve(state: MessagesState) -> dict[str, Any]:
    """Put the passages that share most words with the question before it; the rest of the message is the user's."""
    question = state["messages"][-1]
    words = set(question.text.lower().split())
    best = sorted(PASSAGES, key=lambda passage: -len(words & set(passage.lower().split())))[:24]
    content: list[str | dict[str, Any]] = [
        tag("\n".join(best) + "\n\n", "retrieval"),
        tag(question.text, "user", pinned=True),
    ]
    return {"messages": [HumanMessage(content, id=question.id)]}


def answer(state: MessagesState) -> dict[str, Any]:
    """Answer from the passages."""
    return {"messages": [llm.invoke([SystemMessage("Answer in one sentence."), *state["messages"]])]}


def build() -> Any:
    """The agent; the budget stands in the graph definition."""
    graph = MemDecayStateGraph(MessagesState)
    graph.add_node("retrieve", retrieve)
    graph.add_node("answer", answer, budget=384, pin=["system"])
    graph.add_edge(START, "retrieve")
    graph.add_edge("retrieve", "answer")
    return graph.compile()


def main() -> None:
    """Ask once and print what was kept of question and passages."""
    state = build().invoke({"messages": [HumanMessage("What does crate 7 hold, and what does it weigh?")]})
    kept = state["messages"][-1].response_metadata["memdecay"]
    print(state["messages"][-1].text.strip())
    print(f"tokens by region: {kept['tokens_by_region']}")
    print(f"held {kept['pages_held']} of {kept['pages_total']} pages; freed by region: {kept['freed_by_region']}")


if __name__ == "__main__":
    main()
