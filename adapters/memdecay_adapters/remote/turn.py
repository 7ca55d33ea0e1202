"""One request to a server: its events become chunks of a `RequestStream`, then a result."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

from memdecay_adapters.engine.results import GenerationChunk, GenerationResult, RetentionSummary
from memdecay_adapters.engine.stream import RequestStream
from memdecay_adapters.remote.connection import Connection
from memdecay_adapters.server.wire import GENERATE, read_logprobs
from memdecay_agents.errors import MemDecayError, RemoteError


class RemoteTurn:
    """Fills one stream; runs on the connection's loop. Cancelling it closes the request, which the server aborts.

    Args:
        connection: to the server.
        stream: for the caller.
        body: of the request, as `wire` describes it.
    """

    def __init__(self, connection: Connection, stream: RequestStream, body: Mapping[str, Any]) -> None:
        self._connection = connection
        self._stream = stream
        self._body = body
        self._prompt_tokens = len(body["prompt_token_ids"])
        self._chunks: list[GenerationChunk] = []
        self._started = time.perf_counter()
        self._first_token: float | None = None

    async def run(self) -> None:
        """Send the request and hand over what comes; whatever happens, the stream ends."""
        try:
            async with self._connection.client.stream("POST", GENERATE, json=self._body) as answer:
                if not answer.is_success:
                    await self._connection.read(answer, GENERATE)
                async for event in _events(answer):
                    if self._take(event):
                        return
            raise self._connection.problem(None, GENERATE)
        except MemDecayError as error:
            self._stream.fail(error)
        except httpx.HTTPError as error:
            self._stream.fail(self._connection.unreachable(error))
        except asyncio.CancelledError:
            self._stream.finish(self._result({"finish_reason": "abort"}))
            raise
        except Exception as error:  # what is no event of ours: the reader must not wait for ever
            self._stream.fail(
                RemoteError(
                    where=f"{self._connection.base_url}{GENERATE}",
                    rule=f"its answer cannot be read ({type(error).__name__}: {error})",
                    remedy="Use the same version of memdecay-agents on both sides.",
                )
            )

    def _take(self, event: Mapping[str, Any]) -> bool:
        if "error" in event:
            raise self._connection.problem(event, GENERATE)
        if "finished" in event:
            self._stream.finish(self._result(event["finished"]))
            return True
        chunk = GenerationChunk(event["text"], tuple(event["token_ids"]), read_logprobs(event["logprobs"]))
        if chunk.token_ids and self._first_token is None:
            self._first_token = time.perf_counter()
        self._chunks.append(chunk)
        self._stream.put(chunk)
        return False

    def _result(self, finished: Mapping[str, Any]) -> GenerationResult:
        now = time.perf_counter()
        rows = [row for chunk in self._chunks for row in chunk.logprobs or ()]
        retention = finished.get("retention")
        return GenerationResult(
            request_id=self._stream.request_id,
            text="".join(chunk.text for chunk in self._chunks),
            token_ids=tuple(token_id for chunk in self._chunks for token_id in chunk.token_ids),
            finish_reason=finished["finish_reason"],
            stop_reason=finished.get("stop_reason"),
            prompt_tokens=finished.get("prompt_tokens", self._prompt_tokens),
            cached_tokens=finished.get("cached_tokens", 0),
            wall_seconds=now - self._started,
            time_to_first_token_seconds=(self._first_token or now) - self._started,
            logprobs=tuple(rows) if rows else None,
            retention=None if retention is None else RetentionSummary.from_dict(retention),
        )


async def _events(answer: httpx.Response) -> AsyncIterator[Mapping[str, Any]]:
    """The data of each server-sent event."""
    async for line in answer.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
