"""Histories that change: the session goes on from where they part, or begins anew, and says which region changed."""

from __future__ import annotations

import random

import pytest
from vllm import SamplingParams

from memdecay_adapters.engine.events import DIVERGENCES
from memdecay_agents import FixedBudget, RequestHints
from tests.engine.oracle import logprob_distance
from tests.engine.watching import wait_until

pytestmark = pytest.mark.engine

MAX_DISTANCE = 2e-4
CUTS = [(0, 32, "system"), (32, 120, "plan"), (120, 220, "tool_out"), (220, 300, "user")]


@pytest.fixture
def agent(engine_named):
    engine = engine_named("pressure")
    engine.reset_prefix_cache()
    yield engine
    engine.close_sessions()
    assert engine.pool_stats().free_pages == engine.pool_stats().total_pages


def ids_of(tokens: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, 1000), k=tokens)


def ask(engine, ids, *, budget=256, rewind="continue", thread="t"):
    spans = [[a, min(b, len(ids)), region, 0] for a, b, region in CUTS if a < len(ids)]
    if len(ids) > 300:
        spans.append([300, len(ids), "scratchpad", 0])
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=5)
    hints = RequestHints(session=thread, agent="agent", budget=FixedBudget(tokens=budget), spans=spans, rewind=rewind)
    return engine.generate(ids, params, hints)


def divergences(engine):
    return engine.run_on_engine_thread(lambda llm, internals: internals.controller.events.of(DIVERGENCES))


def test_an_extension_is_no_divergence(agent):
    ids = ids_of(300, 1)
    first = ask(agent, ids)
    before = divergences(agent)
    second = ask(agent, [*ids, *first.token_ids, *ids_of(30, 2)])
    assert second.retention.continued_tokens == 307
    assert (second.retention.rewound_tokens, second.retention.divergent_region) == (0, None)
    assert divergences(agent) == before


@pytest.mark.parametrize(("at", "region"), [(40, "plan"), (150, "tool_out"), (250, "user"), (303, "scratchpad")])
def test_an_edit_rewinds_to_where_the_histories_part_and_names_the_region(agent, random_oracle, at, region):
    ids = ids_of(300, 3)
    first = ask(agent, ids)
    history = [*ids, *first.token_ids][:307]
    edited = [*history[:at], (history[at] + 1) % 1000 + 3, *history[at + 1 :], *ids_of(20, 4)]
    before = divergences(agent)
    second = ask(agent, edited)
    retention = second.retention
    assert (retention.rewound_tokens, retention.divergent_region) == (307 - at, region)
    assert at - 16 < retention.continued_tokens <= at
    assert divergences(agent) - before == {("agent", region, "rewound"): 1}
    kept_gone = [  # what is computed from the parting on sees none of the pages that were gone by then
        entry.model_copy(update={"computed_tokens": min(entry.computed_tokens, retention.continued_tokens)})
        for entry in agent.ledger().entries(request_id=first.retention.request_id)
        if entry.token_start < retention.continued_tokens
    ]
    mine = [*kept_gone, *agent.ledger().entries(request_id=retention.request_id)]
    rows = random_oracle.logprobs([*edited, *second.token_ids[:-1]], mine)
    assert logprob_distance(rows, len(edited), second) <= MAX_DISTANCE


def test_recompute_starts_afresh_after_an_edit_and_nothing_of_the_old_history_is_left(agent, random_oracle):
    ids = ids_of(300, 5)
    ask(agent, ids, budget=160)
    agent.run_on_engine_thread(lambda llm, internals: llm.reset_prefix_cache())
    edited = [*ids[:250], *ids_of(50, 6)]
    before = divergences(agent)
    second = ask(agent, edited, budget=160, rewind="recompute")
    assert second.retention.continued_tokens == 0
    assert second.retention.divergent_region == "user"
    assert divergences(agent) - before == {("agent", "user", "recomputed"): 1}
    assert agent.pool_stats().idle_sessions == 1
    evictions = agent.ledger().entries(request_id=second.retention.request_id)
    rows = random_oracle.logprobs([*edited, *second.token_ids[:-1]], evictions)
    assert logprob_distance(rows, len(edited), second) <= MAX_DISTANCE


def test_recompute_still_extends_a_history_that_was_not_edited_and_drops_a_discarded_answer(agent):
    ids = ids_of(300, 7)
    first = ask(agent, ids)
    assert ask(agent, [*ids, *first.token_ids], rewind="recompute").retention.continued_tokens == 307
    again = ask(agent, [*ids, *ids_of(20, 8)], rewind="recompute")
    assert again.retention.divergent_region is not None


def test_time_travel_to_an_earlier_turn_and_a_branch_from_it(agent, random_oracle):
    ids = ids_of(300, 9)
    first = ask(agent, ids, budget=640)
    longer = [*ids, *first.token_ids, *ids_of(60, 10)]
    ask(agent, longer, budget=640)
    back = ask(agent, ids, budget=640)  # the same question again: the answers in between are gone
    assert back.token_ids == first.token_ids
    assert back.retention.continued_tokens >= 299 - 16
    branch = [*ids, *first.token_ids, *ids_of(60, 11)]
    other = ask(agent, branch, budget=640)
    rows = random_oracle.logprobs([*branch, *other.token_ids[:-1]])
    assert logprob_distance(rows, len(branch), other) <= MAX_DISTANCE


def test_an_unrelated_prompt_starts_afresh_beside_the_old_one(agent):
    ids, unrelated = ids_of(300, 12), ids_of(200, 13)
    first = ask(agent, ids)
    before = divergences(agent)
    second = ask(agent, unrelated)
    assert second.retention.continued_tokens == 0
    assert second.retention.divergent_region == "system"
    assert divergences(agent) - before == {("agent", "system", "unrelated"): 1}
    third = ask(agent, [*ids, *first.token_ids, *ids_of(10, 14)])
    assert third.retention.continued_tokens == 307, "the first history is still there"


def test_two_branches_of_one_thread_at_once_do_not_mix(agent, random_oracle):
    ids = ids_of(300, 15)
    first = ask(agent, ids, budget=320)
    base = [*ids, *first.token_ids]
    branches = [[*base, *ids_of(40, 16 + n)] for n in range(3)]
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=5)
    spans = [[a, b, region, 0] for a, b, region in CUTS] + [[300, len(branches[0]), "scratchpad", 0]]
    hints = RequestHints(session="t", agent="agent", budget=FixedBudget(tokens=320), spans=spans)
    results = [stream.result(60) for stream in [agent.submit(ids, params, hints) for ids in branches]]
    assert sorted(result.retention.continued_tokens for result in results) == [0, 0, 307]
    early = agent.ledger().entries(request_id=first.retention.request_id)
    for ids, result in zip(branches, results, strict=True):
        mine = agent.ledger().entries(request_id=result.retention.request_id)
        if result.retention.continued_tokens:
            mine = [*early, *mine]
        rows = random_oracle.logprobs([*ids, *result.token_ids[:-1]], mine)
        assert logprob_distance(rows, len(ids), result) <= MAX_DISTANCE


def test_a_session_that_is_idle_for_too_long_goes_even_if_nobody_asks_anything(agent):
    ask(agent, ids_of(300, 20))
    internals = agent.run_on_engine_thread(lambda llm, internals: internals)
    sessions = internals.controller.sessions
    assert len(sessions) == 1
    limit = sessions.idle_limit_seconds
    try:
        agent.run_on_engine_thread(lambda llm, internals: setattr(sessions, "idle_limit_seconds", 0.2))
        wait_until(lambda: len(sessions) == 0)  # looked at from here: the engine thread is not woken
        assert agent.pool_stats().free_pages == agent.pool_stats().total_pages
    finally:
        agent.run_on_engine_thread(lambda llm, internals: setattr(sessions, "idle_limit_seconds", limit))
