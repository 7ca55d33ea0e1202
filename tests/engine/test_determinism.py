"""``deterministic=True``: a request's tokens and evictions depend on that request alone."""

from __future__ import annotations

import random

import pytest
from vllm import SamplingParams

from memdecay_adapters.engine import MemDecayEngine
from memdecay_agents import RequestHints
from memdecay_agents.errors import ConfigError, EngineError

pytestmark = pytest.mark.engine


def ids_of(tokens: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, 1000), k=tokens)


@pytest.fixture
def engine(engine_named):
    return engine_named("deterministic")


def sampling(**fields) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 60, "ignore_eos": True, "logprobs": 1, **fields})


def request(number: int, **fields):
    tokens = 200 + 70 * number
    spans = [[0, 16, "system", 0], [16, tokens // 2, "tool_out", 0], [tokens // 2, tokens, "user", 0]]
    hints = RequestHints(session=f"t{number}", agent="a", budget_tokens=128, spans=spans)
    return ids_of(tokens, number), sampling(**fields), hints


def trace(engine, result):
    entries = engine.ledger().entries(request_id=result.retention.request_id)
    logprobs = [entry.logprob for row, token in zip(result.logprobs, result.token_ids, strict=True)
                for entry in [row[token]]]  # fmt: skip
    return result.token_ids, logprobs, [(e.page, e.computed_tokens, e.score, e.reason) for e in entries]


def test_a_request_alone_in_a_batch_and_again_gives_the_same_bits_and_the_same_evictions(engine):
    requests = [request(n) for n in range(5)]
    requests.append(request(5, temperature=1.0, seed=3))
    alone = [trace(engine, engine.generate(*r)) for r in requests]
    assert all(evictions for _, _, evictions in alone)
    for order in ([5, 3, 1, 0, 2, 4], [0, 1, 2, 3, 4, 5]):
        streams = {n: engine.submit(*requests[n]) for n in order}
        results = {n: stream.result(120) for n, stream in streams.items()}
        assert [trace(engine, results[n]) for n in range(6)] == alone
        assert all(results[n].cached_tokens == 0 for n in order)


def test_evictions_fall_on_chunk_and_page_boundaries(engine):
    result = engine.generate(*request(4))
    prompt_tokens = 200 + 70 * 4
    for entry in engine.ledger().entries(request_id=result.retention.request_id):
        assert entry.computed_tokens % (64 if entry.computed_tokens < prompt_tokens - 1 else 1) == 0


def test_sampling_that_depends_on_others_is_refused(engine):
    with pytest.raises(EngineError, match="seed"):
        engine.submit(*request(0, temperature=0.7))


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"engine_args": {"dtype": "bfloat16"}}, "dtype"),
        ({"engine_args": {"max_num_seqs": 4}}, "max_num_seqs"),
        ({"engine_args": {"enable_prefix_caching": True}}, "enable_prefix_caching"),
        ({"engine_args": {"tensor_parallel_size": 2}}, "tensor_parallel_size"),
        ({"keep_sessions": True}, "keep_sessions"),
    ],
)
def test_what_contradicts_determinism_is_refused_before_anything_starts(no_engine, random_llama_path, arguments, names):
    with pytest.raises(ConfigError, match=names):
        MemDecayEngine(random_llama_path, deterministic=True, **arguments)
