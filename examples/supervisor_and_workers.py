"""A supervisor and two workers under different budgets, in one pool of pages.

The supervisor chooses who works next under the grammar of a schema; the pool's figures are printed at the end.
Run: python examples/supervisor_and_workers.py
"""

from typing import Any, Literal

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command

from memdecay_adapters import ChatMemDecay, wrap
from memdecay_agents import FixedBudget

WORKERS = ("researcher", "writer")
llm = ChatMemDecay(max_tokens=32)


class State(MessagesState):
    """The conversation, and who has worked."""

    worked: list[str]


def supervisor(state: State) -> Command[Literal["researcher", "writer", "__end__"]]:
    """Let the model choose among the workers that have not worked yet."""
    left = [name for name in WORKERS if name not in state["worked"]]
    if not left:
        return Command(goto="__end__")
    route = {
        "title": "Route",
        "type": "object",
        "properties": {"worker": {"type": "string", "enum": left}},
        "required": ["worker"],
    }
    asked = [SystemMessage("You lead a team. Say who works next."), *state["messages"]]
    chosen = llm.with_structured_output(route).invoke(asked)["worker"]
    return Command(goto=chosen, update={"worked": [*state["worked"], chosen]})


def worker(name: str, task: str) -> Any:
    """A worker's node."""

    def work(state: State) -> Command[Literal["supervisor"]]:
        answer = llm.invoke([SystemMessage(task), *state["messages"]])
        said = AIMessage(answer.text, name=name, response_metadata=answer.response_metadata)
        return Command(goto="supervisor", update={"messages": [said]})

    return work


def build() -> Any:
    """The team, wrapped: each agent has a budget of its own and a session of its own in the thread."""
    graph = StateGraph(State)
    graph.add_node("supervisor", supervisor)
    graph.add_node("researcher", worker("researcher", "You say what is known, in one sentence."))
    graph.add_node("writer", worker("writer", "You write one friendly sentence."))
    graph.add_edge(START, "supervisor")
    return wrap(
        graph.compile(checkpointer=InMemorySaver()),
        nodes={
            "supervisor": {"budget": 768},
            "researcher": {"budget": FixedBudget(tokens=512, guaranteed_tokens=256), "output_region": "retrieval"},
            "writer": {"budget": 320},
        },
        pin=["system"],
    )


def main() -> None:
    """Run the team once and print what each agent held, and what the pool holds."""
    order = "Write to the customer about the crates. " + "Crate 7 waits at the gate, crate 8 is in the yard. " * 40
    state = build().invoke({"messages": [HumanMessage(order)], "worked": []}, {"configurable": {"thread_id": "team"}})
    for message in state["messages"][1:]:
        kept = message.response_metadata["memdecay"]
        print(f"{message.name}: {message.text.strip()}")
        print(f"  held {kept['pages_held']} of {kept['pages_total']} pages, budget {kept['budget_pages']}")
    stats = llm.get_engine().pool_stats()
    print(f"pool: {stats.free_pages} of {stats.total_pages} pages free, {stats.idle_sessions} sessions kept")
    for agent in llm.get_engine().agents():
        print(f"  {agent.agent}: budget {agent.budget_pages}, held at most {agent.peak_pages} of {agent.longest_pages}")


if __name__ == "__main__":
    main()
