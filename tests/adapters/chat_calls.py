"""Tools, a schema of an answer, and one call made in the four ways that LangChain has."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain_core.messages import AIMessageChunk
from langchain_core.tools import tool
from pydantic import BaseModel

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 3, "b": 4}}\n</tool_call>'


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def lookup(key: str) -> str:
    """Look a key up."""
    return f"value of {key}"


class Person(BaseModel):
    """A person."""

    name: str
    age: int


def merged(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    return total


async def collect(stream: Any) -> list[AIMessageChunk]:
    return [chunk async for chunk in stream]


def four_ways(model: Any, messages: Any, **kwargs: Any) -> list[Any]:
    """The same call by invoke, ainvoke, stream and astream."""
    return [
        model.invoke(messages, **kwargs),
        asyncio.run(model.ainvoke(messages, **kwargs)),
        merged(list(model.stream(messages, **kwargs))),
        merged(asyncio.run(collect(model.astream(messages, **kwargs)))),
    ]
