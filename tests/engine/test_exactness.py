"""The engine's log-probabilities against transformers float32 with the evicted tokens masked."""

from __future__ import annotations

import pytest
from vllm import SamplingParams

from tests.engine.oracle import logprob_distance
from tests.engine.prompts import hints, prompt_ids

pytestmark = pytest.mark.engine

MAX_DISTANCE = 2e-4
NEW_TOKENS = 48


def sampling(new_tokens: int = NEW_TOKENS) -> SamplingParams:
    return SamplingParams(
        temperature=0, max_tokens=new_tokens, min_tokens=new_tokens, ignore_eos=True, logprobs=20,
        skip_reading_prefix_cache=True,
    )  # fmt: skip


def compare(engine, oracle, ids, request_hints):
    """Serve the prompt, check it against the masked oracle, return the evictions and the result."""
    result = engine.generate(ids, sampling(), request_hints)
    evictions = engine.ledger().entries(result.retention.session, request_id=None)
    evictions = evictions[-result.retention.evictions :] if result.retention.evictions else []
    assert len(evictions) == result.retention.evictions
    sequence = [*ids, *result.token_ids[:-1]]
    distance = logprob_distance(oracle.logprobs(sequence, evictions), len(ids), result)
    first_affected = next(
        (i for i in range(NEW_TOKENS) if any(e.computed_tokens <= len(ids) + i - 1 for e in evictions)), NEW_TOKENS
    )
    unmasked = logprob_distance(oracle.logprobs(sequence), len(ids), result, skip=first_affected)
    assert distance <= MAX_DISTANCE
    if evictions:
        assert unmasked >= 100 * distance
    return evictions, result


@pytest.mark.parametrize("name", ["exact", "page32"])
def test_eviction_while_decoding(engine_named, oracle, tokenizer, name):
    engine = engine_named(name)
    page = engine.config.page_size_tokens
    ids = prompt_ids(tokenizer, 250)
    evictions, result = compare(engine, oracle, ids, hints(250, -(-250 // page) * page))
    assert evictions
    assert all(entry.computed_tokens >= 250 for entry in evictions)
    assert result.retention.peak_pages_decode <= result.retention.budget_pages


@pytest.mark.parametrize("name", ["exact", pytest.param("page32", marks=pytest.mark.repeat)])
def test_eviction_while_prefilling(engine_named, oracle, tokenizer, name):
    engine = engine_named(name)
    ids = prompt_ids(tokenizer, 900, seed=1)
    evictions, result = compare(engine, oracle, ids, hints(900, 320))
    assert any(entry.computed_tokens < 900 for entry in evictions)
    retention = result.retention
    assert retention.peak_pages_decode <= retention.budget_pages == 320 // engine.config.page_size_tokens
    assert (
        retention.peak_pages_prefill <= retention.budget_pages + engine.chunk_tokens // engine.config.page_size_tokens
    )


def test_no_eviction_is_the_noise_floor(engine, oracle, tokenizer):
    ids = prompt_ids(tokenizer, 250, seed=2)
    evictions, _ = compare(engine, oracle, ids, hints(250, 2048))
    assert evictions == []


def test_a_prompt_larger_than_the_pool(engine_named, oracle, tokenizer):
    engine = engine_named("small_pool")
    assert engine.pool_stats().total_pages * 16 < 1500
    ids = prompt_ids(tokenizer, 1500, seed=3)
    evictions, result = compare(engine, oracle, ids, hints(1500, None))
    assert len(evictions) >= 1500 // 16 - 320 // 16 - 8
    assert result.retention.budget_pages == 20
    assert result.retention.peak_pages_decode <= 20


@pytest.mark.parametrize("policy_seed", [4, pytest.param(5, marks=pytest.mark.repeat)])
def test_a_batch_of_requests_each_equals_the_oracle(engine, oracle, tokenizer, policy_seed):
    lengths = {"a": 300, "b": 520, "c": 410}
    prompts = {name: prompt_ids(tokenizer, n, seed=policy_seed + i) for i, (name, n) in enumerate(lengths.items())}
    budgets = {"a": 256, "b": 272, "c": None}
    streams = {
        name: engine.submit(ids, sampling(24), hints(len(ids), budgets[name], session=f"batch-{policy_seed}-{name}"))
        for name, ids in prompts.items()
    }
    for name, stream in streams.items():
        result = stream.result(timeout_seconds=300)
        evictions = engine.ledger().entries(result.retention.session)
        assert bool(evictions) == (budgets[name] is not None)
        rows = oracle.logprobs([*prompts[name], *result.token_ids[:-1]], evictions)
        assert logprob_distance(rows, len(prompts[name]), result) <= MAX_DISTANCE
