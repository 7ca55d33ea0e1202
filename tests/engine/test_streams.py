"""A request's stream: sync and async readers, timeouts, cancellation, many callers, and the engine's end."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from vllm import SamplingParams

from memdecay_adapters.engine import MemDecayEngine
from memdecay_agents.errors import EngineError
from tests.engine.prompts import hints, prompt_ids
from tests.engine.watching import wait_until, watching

pytestmark = pytest.mark.engine

LONG = 4000


def sampling(new_tokens: int = 12, **fields) -> SamplingParams:
    return SamplingParams(
        **{"temperature": 0, "max_tokens": new_tokens, "ignore_eos": True, "skip_reading_prefix_cache": True, **fields}
    )


def pool_is_free(engine) -> bool:
    stats = engine.pool_stats()
    return stats.free_pages == stats.total_pages


def test_iteration_gives_the_result_in_pieces_sync_and_async(engine, tokenizer):
    ids = prompt_ids(tokenizer, 60, seed=100)
    stream = engine.submit(ids, sampling(logprobs=2))
    chunks = list(stream)
    result = stream.result(1)
    assert len(chunks) == 12
    assert sum((chunk.token_ids for chunk in chunks), ()) == result.token_ids
    assert "".join(chunk.text for chunk in chunks) == result.text == engine.tokenizer.decode(result.token_ids)
    assert sum((chunk.logprobs for chunk in chunks), ()) == result.logprobs
    assert result.finish_reason == "length"
    assert result.prompt_tokens == 60
    assert 0 < result.time_to_first_token_seconds <= result.wall_seconds
    assert list(stream) == [], "chunks are handed out once"

    async def collect():
        stream = engine.submit(ids, sampling())
        return [chunk async for chunk in stream], await stream.aresult()

    async_chunks, async_result = asyncio.run(collect())
    assert [chunk.token_ids for chunk in async_chunks] == [chunk.token_ids for chunk in chunks]
    assert async_result.token_ids == result.token_ids
    assert asyncio.run(engine.agenerate(ids, sampling())).token_ids == result.token_ids


def test_a_request_that_ends_on_a_stop_string_still_says_what_it_kept(engine, tokenizer):
    ids = prompt_ids(tokenizer, 300, seed=99)
    text = engine.generate(ids, sampling(24), hints(300, 208)).text
    stop = text.split()[6]
    with watching(engine) as watch:
        result = engine.generate(ids, sampling(24, stop=[stop]), hints(300, 208))
    assert result.finish_reason == "stop"
    assert result.stop_reason == stop
    assert stop not in result.text
    assert text.startswith(result.text)
    assert result.retention.evictions == watch.rows(result)[-1].holes > 0
    assert pool_is_free(engine)


def test_a_timeout_leaves_the_request_running_and_an_abort_ends_it(engine, tokenizer):
    stream = engine.submit(prompt_ids(tokenizer, 60, seed=101), sampling(LONG))
    with pytest.raises(TimeoutError, match=stream.request_id):
        stream.result(0.05)
    assert not stream.done
    seen = next(iter(stream))
    stream.abort()
    result = stream.result(60)
    assert result.finish_reason == "abort"
    assert result.token_ids[: len(seen.token_ids)] == seen.token_ids
    stream.abort()  # an ended request cannot be aborted again
    assert stream.result(1) is result
    assert pool_is_free(engine)


def test_cancelling_a_task_aborts_its_request_and_frees_its_pages(engine, tokenizer):
    ids = prompt_ids(tokenizer, 200, seed=102)

    async def cancel_while_waiting():
        stream = engine.submit(ids, sampling(LONG), hints(200, 208))
        task = asyncio.create_task(stream.aresult())
        await stream.__aiter__().__anext__()
        assert engine.pool_stats().held_pages > 0
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return stream

    async def cancel_agenerate():
        task = asyncio.create_task(engine.agenerate(ids, sampling(LONG)))
        await asyncio.to_thread(wait_until, lambda: engine.pool_stats().held_pages > 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert asyncio.run(cancel_while_waiting()).result(60).finish_reason == "abort"
    asyncio.run(cancel_agenerate())
    wait_until(lambda: pool_is_free(engine))


def test_leaving_an_async_iteration_early_aborts_the_request(engine, tokenizer):
    async def leave_early():
        stream = engine.submit(prompt_ids(tokenizer, 60, seed=103), sampling(LONG))
        async for _ in stream:
            break
        return await stream.aresult()

    assert asyncio.run(asyncio.wait_for(leave_early(), 60)).finish_reason == "abort"
    assert pool_is_free(engine)


def test_threads_and_event_loops_are_batched_and_each_gets_its_own_tokens(engine, tokenizer):
    prompts = [prompt_ids(tokenizer, 50 + 20 * i, seed=104 + i) for i in range(6)]
    alone = [engine.generate(ids, sampling()).token_ids for ids in prompts]
    assert len(set(alone)) > 3

    async def serve(some):
        results = await asyncio.gather(*(engine.agenerate(ids, sampling()) for ids in some))
        return [result.token_ids for result in results]

    with watching(engine) as watch, ThreadPoolExecutor(6) as threads:
        loops = [threads.submit(asyncio.run, serve(prompts[0:2])), threads.submit(asyncio.run, serve(prompts[2:4]))]
        plain = [threads.submit(engine.generate, ids, sampling()) for ids in prompts[4:]]
        together = [*loops[0].result(120), *loops[1].result(120), *(future.result(120).token_ids for future in plain)]
    assert together == alone
    assert max(len(sample.rows) for sample in watch.samples) >= 4


def test_an_error_of_vllms_own_validation_ends_one_stream_only(engine, tokenizer):
    ids = prompt_ids(tokenizer, 40, seed=110)
    good = engine.submit(ids, sampling())
    with pytest.raises(Exception, match="vocabulary"):
        engine.generate([10**8], sampling())
    assert len(good.result(60).token_ids) == 12


def test_a_second_engine_in_one_process_is_refused_and_the_first_goes_on(engine, tokenizer):
    with pytest.raises(EngineError, match=r"is open in this process.*close\(\)"):
        MemDecayEngine()
    assert len(engine.generate(prompt_ids(tokenizer, 40, seed=111), sampling(3)).token_ids) == 3


def test_use_after_a_fork_is_refused_in_the_child_only(engine, tokenizer):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"no error"
        try:
            engine.submit([1, 2, 3], sampling(1))
        except EngineError as error:
            said = str(error).encode()
        try:
            engine.close()  # must neither hang nor touch the parent's engine
            os.write(writer, said)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    assert "carried over a fork" in said
    assert "after forking" in said
    assert len(engine.generate(prompt_ids(tokenizer, 40, seed=112), sampling(3)).token_ids) == 3


def test_closing_ends_what_runs_with_an_error_and_refuses_what_comes_after(engine, tokenizer):
    ids = prompt_ids(tokenizer, 60, seed=113)
    streams = [engine.submit(ids, sampling(LONG)) for _ in range(3)]
    next(iter(streams[0]))
    failures: list[BaseException] = []

    def read(wait):
        try:
            wait()
        except BaseException as error:
            failures.append(error)

    waits = [
        lambda: streams[0].result(60),
        lambda: list(streams[1]),
        lambda: asyncio.run(streams[2].aresult()),
    ]
    readers = [threading.Thread(target=read, args=(wait,), daemon=True) for wait in waits]
    for reader in readers:
        reader.start()
    engine.close()
    for reader in readers:
        reader.join(60)
    assert [type(error) for error in failures] == [EngineError] * 3
    assert all("closed" in str(error) for error in failures)
    engine.close()
    assert engine.closed
    for use in (
        lambda: engine.submit(ids, sampling()),
        engine.pool_stats,
        engine.ledger,
        engine.reset_prefix_cache,
        lambda: engine.tokenizer,
    ):
        with pytest.raises(EngineError, match="closed"):
            use()
