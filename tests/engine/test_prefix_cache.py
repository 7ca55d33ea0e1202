"""Prefix caching stays on: what is published is clean, what is shared stays whole, what is hit is trimmed."""

from __future__ import annotations

import pytest
from vllm import SamplingParams

from tests.engine.oracle import logprob_distance
from tests.engine.prompts import hints, prompt_ids
from tests.engine.watching import watching

pytestmark = pytest.mark.engine

MAX_DISTANCE = 2e-4
NEW_TOKENS = 16


def sampling(new_tokens: int = NEW_TOKENS, *, read_cache: bool = True) -> SamplingParams:
    return SamplingParams(
        temperature=0, max_tokens=new_tokens, ignore_eos=True, logprobs=20, skip_reading_prefix_cache=not read_cache
    )


@pytest.fixture(autouse=True)
def empty_cache(engine):
    engine.reset_prefix_cache()


def distance(oracle, ids, result, evictions=()):
    return logprob_distance(oracle.logprobs([*ids, *result.token_ids[:-1]], evictions), len(ids), result)


def evictions_of(engine, result):
    return engine.ledger().entries(request_id=result.retention.request_id)


def test_pages_computed_after_an_eviction_are_not_published(engine, oracle, tokenizer):
    ids = prompt_ids(tokenizer, 700, seed=60)
    evicting = engine.generate(ids, sampling(), hints(700, 256))
    first_eviction = min(entry.computed_tokens for entry in evictions_of(engine, evicting))
    assert 0 < first_eviction < 700
    assert distance(oracle, ids, evicting) > 100 * MAX_DISTANCE, "its own later pages are not clean"
    plain = engine.generate(ids, sampling())
    assert 0 < plain.cached_tokens <= first_eviction
    assert distance(oracle, ids, plain) <= MAX_DISTANCE


def test_pages_generated_after_an_eviction_are_not_published(engine, oracle, tokenizer):
    ids = prompt_ids(tokenizer, 200, seed=61)
    evicting = engine.generate(ids, sampling(64), hints(200, 208))
    assert evictions_of(engine, evicting)
    longer = [*ids, *evicting.token_ids]
    plain = engine.generate(longer, sampling())
    assert 192 <= plain.cached_tokens <= min(e.computed_tokens for e in evictions_of(engine, evicting))
    assert distance(oracle, longer, plain) <= MAX_DISTANCE


def test_a_hit_larger_than_the_budget_is_trimmed_at_once(engine, oracle, tokenizer):
    ids = prompt_ids(tokenizer, 600, seed=62)
    engine.generate(ids, sampling(1))
    with watching(engine) as watch:
        result = engine.generate(ids, sampling(), hints(600, 256))
    assert result.cached_tokens >= 576
    first = watch.rows(result)[0]
    assert first.held <= 256 // 16 + 1
    assert first.holes >= 576 // 16 - 256 // 16
    assert all(row.held <= 256 // 16 for row in watch.rows(result) if row.decoding)
    last, retention = watch.rows(result)[-1], result.retention
    assert retention.pages_total == len(last.blocks)
    assert [retention.holds_page(page) for page in range(len(last.blocks))] == [block != 0 for block in last.blocks]
    assert sum(retention.tokens_by_region.values()) == 600 + NEW_TOKENS - 1
    evictions = evictions_of(engine, result)
    assert evictions
    assert distance(oracle, ids, result, evictions) <= MAX_DISTANCE


def test_evicting_a_shared_page_does_not_disturb_its_other_owner(engine, oracle, tokenizer):
    ids = prompt_ids(tokenizer, 400, seed=63)
    shared = {"pages": 0}

    def count_shared(sample):
        rows = [set(row) - {0} for row in sample.all_rows.values()]
        if len(rows) == 2:
            shared["pages"] = max(shared["pages"], len(rows[0] & rows[1]))

    with watching(engine, scheduled=count_shared) as watch:
        whole = engine.submit(ids, sampling(40))
        next(iter(whole))
        lossy = engine.submit(ids, sampling(24), hints(400, 208))
        owner, sharer = whole.result(120), lossy.result(120)
    together = [sample for sample in watch.samples if len(sample.rows) == 2]
    assert len(together) > 10
    assert shared["pages"] > 5
    assert sharer.cached_tokens >= 384
    evictions = evictions_of(engine, sharer)
    assert len(evictions) >= 400 // 16 - 13
    assert all(row.holes == 0 for row in watch.rows(owner))
    assert distance(oracle, ids, owner) <= MAX_DISTANCE
    assert distance(oracle, ids, sharer, evictions) <= MAX_DISTANCE


def test_the_same_request_before_and_after_another_gives_the_same_tokens_and_evictions(engine, tokenizer):
    ids, other = prompt_ids(tokenizer, 420, seed=64), prompt_ids(tokenizer, 380, seed=65)
    request = (ids, sampling(32, read_cache=False), hints(420, 224, session="again"))
    first = engine.generate(*request)
    engine.generate(other, sampling(24, read_cache=False), hints(380, 240, session="between"))
    second = engine.generate(*request)
    assert first.token_ids == second.token_ids

    def facts(result):
        return [(e.page, e.computed_tokens, e.score, e.order_position) for e in evictions_of(engine, result)]

    assert facts(first) == facts(second) != []
    assert first.retention.page_runs == second.retention.page_runs
