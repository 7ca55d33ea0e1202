"""Results of a graph without what may differ between two runs: message ids, times, and our tags."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.types import Command, Interrupt
from pydantic import BaseModel

from memdecay_adapters import wrap
from tests.graphs.recorder import Call, Recorder, Script, echo


def bare(value: Any) -> Any:
    """Plain data that two runs of the same graph agree in."""
    if isinstance(value, BaseMessage):
        extra = {k: v for k, v in value.additional_kwargs.items() if k != "memdecay"}
        about = {"name": value.name, "calls": [(c["name"], c["args"]) for c in getattr(value, "tool_calls", [])]}
        if isinstance(value, ToolMessage):
            about |= {"artifact": bare(value.artifact), "status": value.status}
        return {"type": value.type, "content": bare(value.content), "extra": bare(extra), **about}
    if isinstance(value, Interrupt):
        return ("interrupt", bare(value.value))
    if isinstance(value, Command):
        return ("command", bare(value.update), bare(value.goto))
    if isinstance(value, BaseModel):
        return (type(value).__name__, bare(dict(value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (type(value).__name__, {f.name: bare(getattr(value, f.name)) for f in dataclasses.fields(value)})
    if isinstance(value, Mapping):
        return {key: bare(item) for key, item in value.items() if key != "memdecay"}
    if isinstance(value, (list, tuple)):
        return [bare(item) for item in value]
    return value


def regions(result: Any) -> list[str | None]:
    """Region stamped on each message of a state."""
    tags = (message.additional_kwargs.get("memdecay") for message in result["messages"])
    return [tag[0]["region"] if tag else None for tag in tags]


class Run(NamedTuple):
    """What the wrapped graph did; the plain one did the same."""

    result: Any
    calls: list[Call]
    graph: Any

    def by_agent(self) -> dict[str, set[int | None]]:
        """Budgets in tokens of each agent's calls."""
        budgets: dict[str, set[int | None]] = {}
        for call in self.calls:
            budgets.setdefault(call.agent, set()).add(call.budget_tokens)
        return budgets


def same(
    build: Callable[[Recorder], Any],
    run: Callable[[Any], Any],
    nodes: Mapping[str, Any] | None = None,
    *,
    script: Script = echo,
    model: Mapping[str, Any] | None = None,
    **wrap_arguments: Any,
) -> Run:
    """Run a graph plain and wrapped, and hold the two against each other.

    Args:
        build: builds the graph around a chat model; called once for each run, so that nothing is shared.
        run: runs a compiled graph and returns all there is to compare.
        nodes: settings for `wrap`; so are further keywords.
        script: the chat model's answers.
        model: further fields of the chat model.
    """
    plain_model, wrapped_model = (Recorder(script=script, calls=[], **(model or {})) for _ in range(2))
    plain = build(plain_model)
    expected = run(plain)

    original = build(wrapped_model)
    before = {name: (node, node.bound, node.metadata) for name, node in original.nodes.items()}
    graph = wrap(original, nodes, **wrap_arguments)
    result = run(graph)
    assert bare(result) == bare(expected)
    assert {name: (node, node.bound, node.metadata) for name, node in original.nodes.items()} == before
    assert [call.keywords.keys() for call in wrapped_model.calls] == [
        call.keywords.keys() for call in plain_model.calls
    ]
    return Run(result, wrapped_model.calls, graph)
