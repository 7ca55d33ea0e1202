"""A node's body in a closure runnable: settings go down to subgraphs, stamps go on what comes out.

The closure goes around the runnable that langgraph has made of the user's function already. Decorating the
function instead would lose the destinations in a ``Command[Literal[...]]`` annotation, and a plain wrapper
around a coroutine function or a generator would fail.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any, NamedTuple, cast

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_core.runnables.config import run_in_executor, var_child_runnable_config
from langgraph.pregel.protocol import PregelProtocol
from langgraph.utils.runnable import RunnableCallable  # type: ignore[attr-defined]  # its only public name

from memdecay_adapters.langgraph.metadata import (
    METADATA_KEY,
    OUTER_METADATA_KEY,
    NodeSettings,
    settings_from_metadata,
)
from memdecay_adapters.langgraph.running import running_node
from memdecay_adapters.langgraph.stamp import KnownMessages, known_messages, stamp_output


def wrap_body(
    body: Runnable[Any, Any], name: str, settings: NodeSettings, message_keys: Collection[str] = frozenset()
) -> Runnable[Any, Any]:
    """Return a runnable that runs ``body`` and stamps what it writes.

    Args:
        body: the node's runnable, as langgraph coerced it. A body wrapped before is unwrapped first, so
            that wrapping twice is wrapping once with the newer settings.
        name: the node's name.
        settings: the node's settings; new messages are stamped with their ``output_region``, if there is one.
        message_keys: see `stamp_output`.
    """
    bound = original_body(body)
    keys = frozenset(message_keys)
    output_region = settings.output_region
    is_subgraph = any(isinstance(step, PregelProtocol) for step in getattr(bound, "steps", [bound]))

    @contextmanager
    def around(state: Any, config: RunnableConfig) -> Iterator[_Ready]:
        known = known_messages(state) if output_region else None
        with running_node(name), _settings_for_subgraphs(config) as inner:
            yield _Ready(inner, known)

    def stamp(output: Any, known: KnownMessages | None) -> Any:
        if known is None or output_region is None:
            return output
        return stamp_output(output, known, output_region, keys, tool_results=not is_subgraph)

    def run(state: Any, config: RunnableConfig) -> Any:
        with around(state, config) as ready:
            output = bound.invoke(state, ready.config)
        return stamp(output, ready.known)

    async def arun(state: Any, config: RunnableConfig) -> Any:
        with around(state, config) as ready:
            output = await bound.ainvoke(state, ready.config)
        return stamp(output, ready.known)

    async def astream(state: Any, config: RunnableConfig) -> AsyncIterator[Any]:
        with around(state, config) as ready:
            chunks = [chunk async for chunk in bound.astream(state, ready.config)]
        if chunks:  # the writers behind a node take its output as a whole: nothing waits for a chunk
            yield stamp(reduce(_added, chunks), ready.known)

    _name_for_cache(run, bound, settings)
    # langgraph refuses a timeout on a sync node by looking at the runnable: show it what the body is.
    in_executor: Any = partial(cast(Any, run_in_executor), None, run)
    afunc = arun if _is_async(bound) else in_executor
    return _WrappedBody(run, afunc, astream, bound)


class _Ready(NamedTuple):
    """What a body runs with."""

    config: RunnableConfig
    known: KnownMessages | None
    """Messages of the node's input; None where nothing is stamped."""


class _WrappedBody(RunnableCallable):
    """A node's runnable around the original one."""

    def __init__(self, run: Any, arun: Any, astream: Any, original: Runnable[Any, Any]) -> None:
        super().__init__(run, arun, name=getattr(original, "name", None), trace=False, recurse=False)
        self._astream = astream
        self.original = original

    async def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:
        """Stream the original: langgraph does so under ``astream_events``, whose events then come out as before."""
        async for chunk in self._astream(input, config or {}):
            yield chunk


def _added(total: Any, chunk: Any) -> Any:
    """Add a chunk as langchain-core does: what cannot be added replaces what was there."""
    try:
        return total + chunk
    except TypeError:
        return chunk


def original_body(body: Runnable[Any, Any]) -> Runnable[Any, Any]:
    """Return the body that `wrap_body` wrapped, or the body itself."""
    return body.original if isinstance(body, _WrappedBody) else body


def _name_for_cache(run: Any, body: Runnable[Any, Any], settings: NodeSettings) -> None:
    """Name ``run`` after the user's function and the settings.

    langgraph keeps a node's cached writes under its function's module and qualified name. Under the closure's
    own name, nodes of the same name in two graphs would read each other's results.
    """
    first: Any = getattr(body, "steps", [body])[0]
    function = getattr(first, "func", None) or getattr(first, "afunc", None) or first
    while isinstance(function, partial):
        function = function.func
    function = function if hasattr(function, "__qualname__") else type(function)
    run.__module__ = function.__module__
    run.__qualname__ = f"{function.__qualname__} {json.dumps(settings.as_metadata(), sort_keys=True)}"


@contextmanager
def _settings_for_subgraphs(config: RunnableConfig) -> Iterator[RunnableConfig]:
    """Pass the node's merged settings down, so that an inner node's settings extend the outer ones.

    The config is also the context's config while the body runs: a node that calls a model without passing
    a config reads it there.
    """
    metadata = config.get("metadata") or {}
    if METADATA_KEY not in metadata and OUTER_METADATA_KEY not in metadata:
        yield config
        return
    merged = settings_from_metadata(metadata).as_metadata()
    inner = cast(RunnableConfig, {**config, "metadata": {**metadata, OUTER_METADATA_KEY: merged}})
    token = var_child_runnable_config.set(inner)
    try:
        yield inner
    finally:
        var_child_runnable_config.reset(token)


def _is_async(body: Runnable[Any, Any]) -> bool:
    """Return whether ``ainvoke`` is the body's own, rather than its ``invoke`` in a thread."""
    if isinstance(body, RunnableCallable):
        executor_backed = isinstance(body.afunc, partial) and body.afunc.func is run_in_executor
        return body.afunc is not None and not executor_backed
    if isinstance(body, RunnableLambda):
        return bool(getattr(body, "afunc", False))
    return type(body).ainvoke is not Runnable.ainvoke
