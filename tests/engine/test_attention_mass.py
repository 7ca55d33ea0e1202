"""The attention that reaches the scheduler against transformers' own attentions."""

from __future__ import annotations

import contextlib
import itertools
import math

import numpy as np
import pytest
import torch
from vllm import SamplingParams

from memdecay_adapters.engine.observer import observed_layer_names
from tests.engine.prompts import hints, prompt_ids

pytestmark = pytest.mark.engine


@contextlib.contextmanager
def observations(engine):
    """Collect what reaches the controller: (tokens computed, token indices, mass, queries)."""
    seen = []

    def install(llm, internals):
        controller = internals.controller
        observe = controller.observe

        def recorded(request_id, token_index, mass, key_norms=None):
            # the newest token is never evicted: its index is the number of tokens computed before it
            tracked = controller._requests.get(request_id)  # None: it ended in this very decode step
            window = controller.config.query_window_tokens
            is_decode = tracked is None or tracked.observed_decode
            queries = 1 if is_decode else min(window, tracked.represented_queries)
            seen.append((int(token_index[-1]) + 1, token_index.copy(), mass.copy(), queries))
            return observe(request_id, token_index, mass, key_norms)

        controller.observe = recorded

    engine.run_on_engine_thread(install)
    try:
        yield seen
    finally:
        engine.run_on_engine_thread(lambda llm, internals: internals.controller.__dict__.pop("observe"))


def expected_mass(oracle, token_ids, queries, layers, evictions=()):
    """Mean attention of the last queries over heads and layers, float32 [n], under the masks of evictions."""
    with torch.no_grad():
        attentions = oracle.model(
            torch.tensor([list(token_ids)]),
            attention_mask=oracle.mask(oracle.hidden(len(token_ids), evictions)),
            output_attentions=True,
            use_cache=False,
        ).attentions
    return torch.stack([attentions[i][0, :, -queries:, :].mean((0, 1)) for i in layers]).mean(0).numpy()


def layers_of(engine, oracle):
    count = oracle.model.config.num_hidden_layers
    names = [str(i) for i in range(count)]
    return sorted(int(name) for name in observed_layer_names(names, engine.config.observed_layers))


def serve(engine, tokenizer, seed, *, tokens=210, budget_tokens=None, new_tokens=24):
    """Serve one request that its budget binds; its sequence, its evictions and what was observed."""
    page = engine.config.page_size_tokens
    budget_tokens = budget_tokens or -(-tokens // page) * page
    ids = prompt_ids(tokenizer, tokens, seed=seed)
    sampling = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, skip_reading_prefix_cache=True)
    with observations(engine) as seen:
        result = engine.generate(ids, sampling, hints(tokens, budget_tokens, session=f"mass-{seed}"))
    evictions = engine.ledger().entries(request_id=result.retention.request_id)
    return [*ids, *result.token_ids], evictions, seen


def distances(engine, oracle, sequence, evictions, seen):
    """Per observation: (queries, retained tokens, total mass, largest |difference|)."""
    layers = layers_of(engine, oracle)
    for computed, token_index, mass, queries in seen:
        gone = [entry for entry in evictions if entry.computed_tokens < computed]
        hidden = {token for entry in gone for token in range(entry.token_start, entry.token_end)}
        assert token_index.tolist() == [token for token in range(computed) if token not in hidden]
        expected = expected_mass(oracle, sequence[:computed], queries, layers, gone)
        yield queries, len(token_index), float(mass.sum(dtype=np.float64)), np.abs(mass - expected[token_index]).max()


@pytest.mark.parametrize("name", ["exact", pytest.param("page32", marks=pytest.mark.repeat)])
def test_mass_equals_the_oracles_in_a_prefill_chunk_and_in_decode_before_and_after_eviction(
    engine_named, oracle, tokenizer, name
):
    engine = engine_named(name)
    sequence, evictions, seen = serve(engine, tokenizer, seed=50)
    assert evictions
    kinds = set()
    # the chunk, the first decode step, and the last, which comes after evictions
    for queries, retained, total, distance in distances(engine, oracle, sequence, evictions, [*seen[:2], seen[-1]]):
        assert distance <= 2e-6
        assert math.isclose(total, 1.0, abs_tol=2e-6)
        kinds.add((queries, retained < seen[-1][0]))
    assert kinds >= {(16, True), (1, True)}
    assert len(seen[-1][1]) < seen[-1][0], "the last one was measured over a table with holes"
    assert all(a[0] < b[0] for a, b in itertools.pairwise(seen))
    strides = {b[0] - a[0] for a, b in itertools.pairwise(seen[1:])}
    assert strides == {engine.config.measure_every_steps}


def test_mass_equals_the_oracles_in_a_prefill_chunk_after_eviction(engine, oracle, tokenizer):
    # chunks of 256 tokens; pages go before the second and the third
    sequence, evictions, seen = serve(engine, tokenizer, seed=51, tokens=600, budget_tokens=208, new_tokens=2)
    chunk_ends = [computed for computed, _, _, queries in seen if queries == 16]
    assert chunk_ends == [256, 512, 600]
    assert {entry.computed_tokens for entry in evictions} >= {256, 512}
    for _, retained, total, distance in distances(engine, oracle, sequence, evictions, seen):
        assert retained <= 600
        assert distance <= 2e-6
        assert math.isclose(total, 1.0, abs_tol=2e-6)


def test_the_budgets_pages_are_page32s_too(engine_named, tokenizer):
    from tests.engine.watching import watching

    engine = engine_named("page32")
    ids = prompt_ids(tokenizer, 420, seed=52)
    sampling = SamplingParams(temperature=0, max_tokens=36, ignore_eos=True, skip_reading_prefix_cache=True)
    with watching(engine) as watch:
        result = engine.generate(ids, sampling, hints(420, 256))
    assert result.retention.budget_pages == 8
    assert result.retention.evictions == watch.rows(result)[-1].holes > 0
    for row in watch.rows(result):
        assert row.held <= 8 + (0 if row.decoding else 8)
