"""A pool too small for its requests: freed blocks are taken over at once, requests are preempted and come back."""

from __future__ import annotations

import random

import pytest
from vllm import SamplingParams

from tests.engine.oracle import logprob_distance
from tests.engine.prompts import hints, prompt_ids
from tests.engine.watching import watching

pytestmark = pytest.mark.engine

MAX_DISTANCE = 2e-4


@pytest.fixture
def small(engine_named):
    engine = engine_named("small_pool")
    yield engine
    if not engine.closed:
        stats = engine.pool_stats()
        assert stats.free_pages == stats.total_pages
        engine.ledger().check_integrity()
        assert engine.ledger().summary().held == 0


def sampling(new_tokens: int) -> SamplingParams:
    return SamplingParams(
        temperature=0, max_tokens=new_tokens, ignore_eos=True, logprobs=5, skip_reading_prefix_cache=True
    )


def evictions_of(engine, result):
    return engine.ledger().entries(request_id=result.retention.request_id)


def assert_budget_holds(engine, rows, budget_pages):
    chunk_pages = -(-engine.chunk_tokens // engine.config.page_size_tokens)
    for row in rows:
        assert row.held <= budget_pages + (0 if row.decoding else chunk_pages), row


def test_freed_blocks_serve_another_request_while_the_first_goes_on_unchanged(small, tokenizer):
    ids, other = prompt_ids(tokenizer, 400, seed=11), prompt_ids(tokenizer, 620, seed=12)
    request = (ids, sampling(40), hints(400, 208, session="reuse-a"))
    alone = small.generate(*request)
    with watching(small) as watch:
        first = small.submit(*request)
        next(iter(first))  # its prompt is computed, and pages were evicted
        second = small.submit(other, sampling(2), hints(620, 640, session="reuse-b"))
        beside, intruder = first.result(120), second.result(120)
    assert watch.overwritten(beside, by=intruder), "the second request took none of the first one's freed blocks"
    assert beside.token_ids == alone.token_ids
    assert [e.page for e in evictions_of(small, beside)] == [e.page for e in evictions_of(small, alone)] != []
    for a, b in zip(alone.logprobs, beside.logprobs, strict=True):
        for token_id in a.keys() & b.keys():
            assert abs(a[token_id].logprob - b[token_id].logprob) < 1e-4


def test_requests_without_budgets_that_outgrow_the_pool_are_preempted_and_end_with_the_oracles_numbers(
    small, oracle, tokenizer
):
    # without budgets: four times 15 pages to begin with, four times 17 in the end, in a pool of 63
    requests = [
        (prompt_ids(tokenizer, 230, seed=70 + i), hints(230, None, session=f"crowd-{i}", agent="unlimited"))
        for i in range(4)
    ]
    before = small.pool_stats().preemptions
    with watching(small) as watch:
        streams = [small.submit(ids, sampling(36), h) for ids, h in requests]
        results = [stream.result(240) for stream in streams]
    assert small.pool_stats().preemptions > before
    assert any(sum(row.computed_before == 0 for row in watch.rows(result)) > 1 for result in results), "one began again"
    for result, (ids, _) in zip(results, requests, strict=True):
        assert len(result.token_ids) == 36
        assert evictions_of(small, result) == []
        rows = oracle.logprobs([*ids, *result.token_ids[:-1]])
        assert logprob_distance(rows, len(ids), result) <= MAX_DISTANCE


def preempt_at(steps):
    """A hook that preempts all that runs before the given steps."""
    count = iter(range(10**6))

    def before_step(llm):
        if next(count) in steps:
            llm.reset_prefix_cache(reset_running_requests=True)

    return before_step


def test_a_preempted_request_is_computed_again_within_its_budget_and_to_the_oracles_numbers(small, oracle, tokenizer):
    ids = prompt_ids(tokenizer, 400, seed=74)
    before = small.pool_stats().preemptions
    # four chunks of the prompt, then decoding; preempted in the prefill and ten tokens later in the decode
    with watching(small, before_step=preempt_at({3, 20})) as watch:
        result = small.generate(ids, sampling(28), hints(400, 208))
    assert small.pool_stats().preemptions == before + 2
    rows = watch.rows(result)
    starts = [i for i, row in enumerate(rows) if row.computed_before == 0]
    assert len(starts) == 3
    assert_budget_holds(small, rows, 13)
    tokens_before = rows[starts[2]].known_tokens - len(ids)
    assert 8 <= tokens_before <= 20
    evictions = evictions_of(small, result)
    assert result.retention.evictions == len(evictions)
    # three lives, each with its own evictions
    first_of_life = [watch.samples[start].evictions - watch.samples[0].evictions for start in starts]
    assert 0 < first_of_life[1] < first_of_life[2] < len(evictions)
    second, third = evictions[first_of_life[1] : first_of_life[2]], evictions[first_of_life[2] :]
    assert len({entry.page for entry in third}) == len(third) == rows[-1].holes
    sequence = [*ids, *result.token_ids[:-1]]
    assert logprob_distance(oracle.logprobs(sequence, third), len(ids), result, skip=tokens_before) <= MAX_DISTANCE
    early = type(result)(**{**vars(result), "logprobs": result.logprobs[:tokens_before]})
    assert logprob_distance(oracle.logprobs(sequence, second), len(ids), early) <= MAX_DISTANCE


def test_preemptions_at_random_leave_ledger_pool_and_outputs_right(small, tokenizer):
    # budgets that never bind: every page is computed again, and the tokens must not change
    requests = [(prompt_ids(tokenizer, 130 + 40 * i, seed=80 + i), hints(130 + 40 * i, 480, session=f"chaos-{i}"))
                for i in range(3)]  # fmt: skip
    alone = [small.generate(ids, sampling(24), h).token_ids for ids, h in requests]
    steps = set(random.Random(7).sample(range(1, 40), 6))
    before = small.pool_stats().preemptions
    with watching(small, before_step=preempt_at(steps)) as watch:
        streams = [small.submit(ids, sampling(24), h) for ids, h in requests]
        results = [stream.result(240) for stream in streams]
    assert small.pool_stats().preemptions >= before + 6
    assert [result.token_ids for result in results] == alone
    for sample in watch.samples:
        assert sample.free_blocks == watch.total_blocks - len(
            {b for row in sample.all_rows.values() for b in row} - {0}
        )


def test_a_preempted_request_can_be_aborted(small, tokenizer):
    ids = prompt_ids(tokenizer, 300, seed=84)
    streams = []

    def before_step(llm):
        if len(watch.samples) == 8:
            llm.reset_prefix_cache(reset_running_requests=True)
            streams[0].abort()

    with watching(small, before_step=before_step) as watch:
        streams.append(small.submit(ids, sampling(400), hints(300, 256)))
        assert streams[0].result(120).finish_reason == "abort"
    assert len(watch.samples) in (8, 9)
