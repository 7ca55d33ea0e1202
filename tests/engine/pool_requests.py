"""Requests of several agents to an engine with one small pool, and what became of them."""

from __future__ import annotations

import random

from vllm import SamplingParams

from memdecay_agents import RequestHints
from tests.engine.oracle import logprob_distance

MAX_DISTANCE = 2e-4


def ids_of(tokens: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, 1000), k=tokens)


def sampling(new_tokens: int, **fields) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": new_tokens, "ignore_eos": True, "logprobs": 5, **fields})


def request(name: str, tokens: int, budget, new_tokens: int = 8, *, seed: int = 0, pinned: int = 16):
    ids = ids_of(tokens, seed)
    half = (pinned + tokens) // 2
    spans = [[0, pinned, "system", 0], [pinned, half, "retrieval", 0], [half, tokens, "user", 0]]
    return ids, sampling(new_tokens), RequestHints(session=name, agent=name, budget=budget, spans=spans)


def events(engine, spec):
    return engine.run_on_engine_thread(lambda llm, internals: internals.controller.events.of(spec))


def evictions_of(engine, result):
    return engine.ledger().entries(request_id=result.retention.request_id)


def assert_exact(oracle, engine, ids, result, evictions=None):
    evictions = evictions_of(engine, result) if evictions is None else evictions
    rows = oracle.logprobs([*ids, *result.token_ids[:-1]], evictions)
    distance = logprob_distance(rows, len(ids), result)
    assert distance <= MAX_DISTANCE, f"{distance} from the oracle"
