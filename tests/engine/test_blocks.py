"""Pages against vLLM's own block tables and pool: freed ones come back, budgets hold, nothing leaks."""

from __future__ import annotations

from collections import Counter

import pytest
from vllm import SamplingParams

from tests.engine.prompts import hints, prompt_ids
from tests.engine.watching import watching

pytestmark = pytest.mark.engine


def sampling(new_tokens: int, **fields) -> SamplingParams:
    return SamplingParams(
        **{"temperature": 0, "max_tokens": new_tokens, "ignore_eos": True, "skip_reading_prefix_cache": True, **fields}
    )


def tables(tokenizer, lengths, budgets, seed):
    """Prompts with their hints, each in a session of its own."""
    return [
        (prompt_ids(tokenizer, length, seed=seed + i), hints(length, budget, session=f"blocks-{seed}-{i}"))
        for i, (length, budget) in enumerate(zip(lengths, budgets, strict=True))
    ]


def assert_budget_holds(rows, budget_pages, engine):
    chunk_pages = -(-engine.chunk_tokens // engine.config.page_size_tokens)
    for row in rows:
        assert row.held <= budget_pages + (0 if row.decoding else chunk_pages), row


def test_free_blocks_rise_by_exactly_the_evicted_pages(engine, tokenizer):
    ids = prompt_ids(tokenizer, 550, seed=10)
    before = engine.ledger().summary().evicted
    with watching(engine) as watch:
        result = engine.generate(ids, sampling(20), hints(550, 256))
    assert result.retention.evictions > 10
    previous_free, previous_length, previous_evicted = watch.total_blocks, 0, before
    for sample in watch.samples:
        (row,) = sample.rows.values()
        evicted_now = sample.evictions - previous_evicted
        allocated_now = len(row.blocks) - previous_length
        assert sample.free_blocks == previous_free + evicted_now - allocated_now
        assert sample.free_blocks == watch.total_blocks - row.held
        assert row.holes == sample.evictions - before
        previous_free, previous_length, previous_evicted = sample.free_blocks, len(row.blocks), sample.evictions
    assert any(
        later.free_blocks > sooner.free_blocks for sooner, later in zip(watch.samples, watch.samples[1:], strict=False)
    ), "the pool grew while the request lived"


def test_budgets_hold_at_every_step_of_a_batch(engine, tokenizer):
    page = engine.config.page_size_tokens
    requests = tables(tokenizer, (580, 300, 270), (256, 272, 272), seed=20)
    with watching(engine) as watch:
        streams = [engine.submit(ids, sampling(20), h) for ids, h in requests]
        results = [stream.result(120) for stream in streams]
    assert any(len(sample.rows) == 3 for sample in watch.samples), "they were batched"
    for result, (_, h) in zip(results, requests, strict=True):
        rows = watch.rows(result)
        assert len(rows) >= 20
        assert_budget_holds(rows, h.budget_tokens // page, engine)
        assert result.retention.shortfall_pages == 0


def test_the_summary_is_what_rows_and_ledger_say(engine, tokenizer):
    page = 16
    requests = tables(tokenizer, (420, 250, 120), (256, 256, None), seed=30)
    with watching(engine) as watch:
        streams = [engine.submit(ids, sampling(20), h) for ids, h in requests]
        results = [stream.result(120) for stream in streams]
    ledger = engine.ledger()
    for result, (ids, h) in zip(results, requests, strict=True):
        retention, rows = result.retention, watch.rows(result)
        entries = ledger.entries(request_id=retention.request_id)
        last = rows[-1]
        assert retention.evictions == len(entries) == last.holes
        assert retention.pages_total == len(last.blocks) == -(-(len(ids) + 19) // page)
        assert retention.pages_held == last.held
        assert [retention.holds_page(p) for p in range(len(last.blocks))] == [b != 0 for b in last.blocks]
        assert {entry.page for entry in entries} == {p for p, b in enumerate(last.blocks) if b == 0}
        assert retention.peak_pages_prefill == max(row.held for row in rows if not row.decoding)
        assert retention.peak_pages_decode == max(row.held for row in rows if row.decoding)
        expected = Counter(region for start, end, region, _ in h.spans for _ in range(start, end))
        expected["scratchpad"] += 19  # the last token's keys are never computed
        assert retention.tokens_by_region == expected
        assert retention.freed_by_region == Counter(entry.region for entry in entries)
        held_by_region = Counter(retention.pages_by_region) - Counter(retention.freed_by_region)
        assert retention.pages_held_by_region == held_by_region
        assert sum(retention.pages_by_region.values()) == retention.pages_total
        assert sum(sum(entry.regions.values()) for entry in entries) == page * len(entries)
        assert retention.budget_pages == (None if h.budget_tokens is None else h.budget_tokens // page)
    assert results[2].retention.evictions == 0
    assert results[0].retention.evictions > 0


@pytest.mark.parametrize("moment", ["prefill", "decode", "waiting"])
def test_an_aborted_request_leaves_no_page_behind(engine, tokenizer, moment):
    ids = prompt_ids(tokenizer, 900, seed=13)
    request_hints = hints(900, 320, session=f"abort-{moment}")
    done = {"prefill": lambda row: row.holes > 0, "decode": lambda row: row.decoding and row.holes > 35}
    before = engine.ledger().summary()

    def stop(sample):
        if moment != "waiting" and any(done[moment](row) for row in sample.rows.values()):
            stream.abort()

    with watching(engine, scheduled=stop) as watch:
        if moment == "waiting":
            # both commands are taken before the next step: the request is never scheduled
            stream = engine.run_on_engine_thread(lambda llm, internals: submit_and_abort(engine, ids, request_hints))
        else:
            stream = engine.submit(ids, sampling(400), request_hints)
        result = stream.result(120)
        rows = watch.rows(result)
    assert result.finish_reason == "abort"
    assert len(result.token_ids) < 400
    assert result.retention.evictions == (rows[-1].holes if rows else 0)
    if moment == "waiting":
        assert rows == []
    else:
        assert rows[-1].decoding == (moment == "decode")
        assert rows[-1].holes > 0
    stats = engine.pool_stats()
    assert stats.free_pages == stats.total_pages
    after = engine.ledger().summary()
    assert after.held == 0
    assert after.evicted - before.evicted == (rows[-1].holes if rows else 0)


def submit_and_abort(engine, ids, request_hints):
    stream = engine.submit(ids, sampling(400), request_hints)
    stream.abort()
    return stream


def test_many_requests_come_and_go_and_the_pool_is_whole(engine, tokenizer):
    streams = []
    for i in range(8):
        length = 120 + 30 * i
        ids = prompt_ids(tokenizer, length, seed=40 + i)
        streams.append(engine.submit(ids, sampling(4 + i), hints(length, 192 if i % 2 else None, session=f"many-{i}")))
    for stream in streams[::3]:
        stream.abort()
    reasons = Counter(stream.result(120).finish_reason for stream in streams)
    assert reasons["abort"] >= 1
    assert reasons["length"] >= 4
    stats = engine.pool_stats()
    assert stats.free_pages == stats.total_pages
    assert engine.ledger().summary().held == 0
