"""Run metadata for ``_stream``: langchain-core hands it no run manager, so a context variable holds it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from contextlib import aclosing, closing, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from memdecay_adapters.langgraph.metadata import call_metadata

Item = TypeVar("Item")

_current: ContextVar[Mapping[str, Any] | None] = ContextVar("memdecay_run_metadata", default=None)


def metadata_of(run_manager: Any) -> dict[str, Any]:
    """Return the metadata of a call: its run manager's, else what `carrying` holds, over the context's."""
    own = getattr(run_manager, "metadata", None) if run_manager is not None else _current.get()
    return call_metadata(own)


@contextmanager
def carrying(metadata: Mapping[str, Any] | None) -> Iterator[None]:
    """Hold metadata for calls made inside; None holds nothing new."""
    if metadata is None:
        yield
        return
    token = _current.set(metadata)
    try:
        yield
    finally:
        _current.reset(token)


def carry_through(items: Iterator[Item], metadata: Mapping[str, Any] | None) -> Iterator[Item]:
    """Iterate with metadata held only while ``items`` runs, never while the caller does."""
    with closing(cast("Generator[Item]", items)):
        while True:
            with carrying(metadata):
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item


async def acarry_through(items: AsyncIterator[Item], metadata: Mapping[str, Any] | None) -> AsyncIterator[Item]:
    """The same for an async iterator."""
    async with aclosing(cast("AsyncGenerator[Item]", items)):
        while True:
            with carrying(metadata):
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
            yield item
