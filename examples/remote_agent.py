"""An agent whose model is on a server: prompts are tagged here, pages are evicted there.

Run: memdecay serve --budget 512          (in another terminal; --api-keys FILE where several people share it)
     python examples/remote_agent.py      (MEMDECAY_URL and MEMDECAY_API_KEY say where, and as whom)
"""

import os
from typing import Any

from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.graph import END, START, MessagesState, StateGraph

from memdecay_adapters import ChatMemDecayRemote, wrap

URL = os.environ.get("MEMDECAY_URL", "http://127.0.0.1:8000")
llm = ChatMemDecayRemote(base_url=URL, max_tokens=24)


async def plan(state: MessagesState) -> dict[str, Any]:
    """Ask for a plan."""
    return {"messages": [await llm.ainvoke([SystemMessage("You plan in one sentence."), *state["messages"]])]}


async def answer(state: MessagesState) -> dict[str, Any]:
    """Answer from the plan."""
    return {"messages": [await llm.ainvoke([SystemMessage("You answer in one sentence."), *state["messages"]])]}


def build() -> Any:
    """Two nodes under budgets of their own, in tokens."""
    graph = StateGraph(MessagesState)
    graph.add_node("plan", plan)
    graph.add_node("answer", answer)
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "answer")
    graph.add_edge("answer", END)
    settings = {"plan": {"output_region": "plan", "budget": 384}, "answer": {"budget": 256, "pin": ["system", "plan"]}}
    return wrap(graph, settings).compile()


async def main() -> None:
    """Run it, look at what the server's cache holds, and give it back."""
    question = "Which of the goods should be loaded first? " + "Crates, drums and pallets wait at the gate. " * 40
    state = await build().ainvoke({"messages": [HumanMessage(question)]}, {"configurable": {"thread_id": "example"}})
    for message in state["messages"][1:]:
        kept = message.response_metadata["memdecay"]
        print(f"{kept['agent']}: held {kept['pages_held']} of {kept['pages_total']} pages")
        print(f"  freed by region: {kept['freed_by_region']}")
    for held in llm.get_engine().sessions():
        print(f"on the server: thread {held.session}, agent {held.agent}, {held.pages_held} pages, {held.state}")
    print(f"given back: {llm.release_thread('example')} sessions")


if __name__ == "__main__":
    import asyncio

    asyncio.run(main())
