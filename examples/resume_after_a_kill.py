"""A conversation that outlives its process: a checkpointer in a file, and a session rebuilt from it.

Run: python examples/resume_after_a_kill.py chat.sqlite "Who counts the crates?"
and again with another question, or with none: a turn that was cut off, even by SIGKILL, is then finished first.
"""

import sys
from collections.abc import Callable
from typing import Any

from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from memdecay_adapters import ChatMemDecay, wrap

THREAD: Any = {"configurable": {"thread_id": "warehouse"}}
RULES = SystemMessage("You are the clerk of a warehouse. Answer in one short sentence.")
llm = ChatMemDecay(max_tokens=24)


def answer(state: MessagesState) -> dict[str, Any]:
    """Answer the last question."""
    return {"messages": [llm.invoke([RULES, *state["messages"]])]}


def build(checkpointer: Any) -> Any:
    """The agent; its thread lives in the checkpointer's file, the engine's session only in this process."""
    graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")
    return wrap(graph.compile(checkpointer=checkpointer), nodes={"answer": {"budget": 1024, "pin": ["system"]}})


def turn(app: Any, given: dict[str, Any] | None, show: Callable[[str], None]) -> None:
    """Run one turn and show its pieces; ``given`` None goes on with a turn that was cut off.

    ``durability="sync"``: a question is in the file before the model sees it.
    """
    for piece, _ in app.stream(given, THREAD, stream_mode="messages", durability="sync"):
        show(piece.text)


def talk(path: str, question: str | None, show: Callable[[str], None]) -> list[Any]:
    """Finish what was cut off, ask the question if there is one, and return the whole conversation."""
    with SqliteSaver.from_conn_string(path) as checkpointer:
        return converse(build(checkpointer), question, show)


def converse(app: Any, question: str | None, show: Callable[[str], None]) -> list[Any]:
    """The same, with the agent."""
    if app.get_state(THREAD).tasks:  # not .next: a node may have finished whose answer is not in the state yet
        turn(app, None, show)
    if question:
        turn(app, {"messages": [HumanMessage(question)]}, show)
    return list(app.get_state(THREAD).values.get("messages", []))


def main() -> None:
    """Talk once and print the conversation; of each answer, how many tokens the session had already."""
    path, *questions = sys.argv[1:] or ["chat.sqlite"]
    for message in talk(path, questions[0] if questions else None, show=lambda piece: None):
        kept = message.response_metadata.get("memdecay")
        known = f"  [{kept['continued_tokens']} tokens were in the cache]" if kept else ""
        print(f"{message.type}: {message.text.strip()}{known}")


if __name__ == "__main__":
    main()
