"""Several agents in one pool: guarantees, shares, who gives way to whom, and that nobody's numbers suffer."""

from __future__ import annotations

import pytest

from memdecay_adapters.engine.events import (
    ADMISSION_REFUSALS,
    ADMISSION_WAITS,
    PARKED_SESSIONS,
    PREEMPTIONS,
    SHRUNK_PAGES,
)
from memdecay_agents import ContextFraction, FixedBudget, PoolShare, RequestHints
from memdecay_agents.errors import BudgetError
from tests.engine.pool_requests import assert_exact, events, evictions_of, ids_of, request, sampling
from tests.engine.watching import watching

pytestmark = pytest.mark.engine

CHUNK_PAGES = 4
LIMIT_PAGES = 63 - CHUNK_PAGES - 1
"""What can be guaranteed in a pool of 63 pages."""


@pytest.fixture
def pool(engine_named):
    engine = engine_named("pressure")
    engine.reset_prefix_cache()
    yield engine
    engine.close_sessions()
    stats = engine.pool_stats()
    assert stats.free_pages == stats.total_pages
    assert (stats.reserved_pages, stats.waiting_requests) == (0, 0)
    engine.ledger().check_integrity()


# ---- admission


def test_guarantees_that_do_not_fit_together_wait_their_turn_and_nobody_is_preempted(pool, random_oracle):
    requests = [request(f"agent-{n}", 200, FixedBudget(tokens=320), 200, seed=n) for n in range(4)]
    waits, preemptions = sum(events(pool, ADMISSION_WAITS).values()), pool.pool_stats().preemptions
    with watching(pool) as watch:
        results = [stream.result(120) for stream in [pool.submit(*r) for r in requests]]
    assert pool.pool_stats().preemptions == preemptions
    assert max(len(sample.all_rows) for sample in watch.samples) == 2, "twice 20 pages fit in 58, not three times"
    assert sum(events(pool, ADMISSION_WAITS).values()) - waits == 2
    for (ids, _, _), result in zip(requests, results, strict=True):
        assert len(result.token_ids) == 200
        assert_exact(random_oracle, pool, ids, result)


def test_a_small_request_does_not_overtake_a_large_one_that_waits(pool):
    order = []
    with watching(pool, scheduled=lambda sample: order.extend(sample.rows)):
        streams = [
            pool.submit(*request("first", 300, FixedBudget(tokens=640), 100)),
            pool.submit(*request("large", 300, FixedBudget(tokens=640), 8, seed=1)),
            pool.submit(*request("small", 60, FixedBudget(tokens=64), 8, seed=2)),
        ]
        results = [stream.result(120) for stream in streams]
    first, large, small = (next(i for i, name in enumerate(order) if name.startswith(r.request_id)) for r in results)
    assert first < large < small


def test_a_waiting_request_can_be_aborted_and_the_next_takes_its_place(pool):
    running = pool.submit(*request("first", 300, FixedBudget(tokens=640), 150))
    waiting = pool.submit(*request("waiting", 300, FixedBudget(tokens=640), 8, seed=1))
    next(iter(running))
    waiting.abort()
    small = pool.submit(*request("small", 60, FixedBudget(tokens=64), 8, seed=2))
    assert waiting.result(60).finish_reason == "abort"
    assert small.result(60).finish_reason == "length"
    assert running.result(60).finish_reason == "length"


def test_refusing_admission_says_who_has_the_pool(pool, monkeypatch):
    monkeypatch.setattr(pool, "_admission", "refuse")
    refusals = sum(events(pool, ADMISSION_REFUSALS).values())
    running = pool.submit(*request("first", 300, FixedBudget(tokens=640), 150))
    next(iter(running))
    with pytest.raises(BudgetError, match=r"guarantee of 32 pages .* guaranteed 29 of the 58 .*wait") as caught:
        pool.generate(*request("second", 600, FixedBudget(tokens=640, guaranteed_tokens=512), 8, seed=1))
    assert caught.value.code == "budget"
    pool.generate(*request("third", 60, FixedBudget(tokens=64), 8, seed=2))
    running.result(60)
    assert (
        pool.generate(*request("second", 600, FixedBudget(tokens=640, guaranteed_tokens=512), 8, seed=1)).finish_reason
        == "length"
    )
    assert sum(events(pool, ADMISSION_REFUSALS).values()) - refusals == 1


def test_a_guarantee_that_never_fits_is_refused_at_once(pool):
    with pytest.raises(BudgetError, match="the pool has 63"):
        pool.submit(*request("whale", 1100, PoolShare(guaranteed_tokens=960), 8))


# ---- budgets that are no number


def test_a_fraction_of_the_context_grows_with_it(pool, random_oracle):
    budget = ContextFraction(fraction=0.5, floor_tokens=96, ceiling_tokens=256)
    ids, params, hints = request("half", 240, budget, 400)
    with watching(pool) as watch:
        result = pool.generate(ids, params, hints)
    for row in watch.rows(result):
        if row.decoding:
            assert row.held <= min(max(row.known_tokens // 2, 96), 256) // 16
    held = [row.held for row in watch.rows(result) if row.decoding]
    assert (held[0], held[-1]) == (7, 16)
    assert_exact(random_oracle, pool, ids, result)


def test_shares_follow_the_weights_of_those_that_run(pool, random_oracle):
    heavy = request("heavy", 1000, PoolShare(weight=2.0, guaranteed_tokens=96), 300, seed=1)
    light = request("light", 900, PoolShare(weight=1.0, guaranteed_tokens=96), 40, seed=2)
    with watching(pool) as watch:
        first = pool.submit(*heavy)
        next(iter(first))
        second = pool.submit(*light)
        results = [first.result(120), second.result(120)]
    held = {"alone": [], "both": [], "light": []}
    for sample in watch.samples:
        rows = {name.rsplit("-", 1)[0]: row for name, row in sample.rows.items() if row.decoding}
        one, two = (rows.get(result.request_id) for result in results)
        if one and two:
            held["both"].append(one.held)
            held["light"].append(two.held)
        elif one and len(sample.all_rows) == 1:
            held["alone"].append(one.held)
    assert max(held["alone"]) == LIMIT_PAGES
    assert set(held["both"][1:]) == {LIMIT_PAGES * 2 // 3}
    assert set(held["light"][1:]) == {LIMIT_PAGES // 3}
    assert not events(pool, PREEMPTIONS)[("heavy",)] + events(pool, PREEMPTIONS)[("light",)]
    for (ids, _, _), result in zip((heavy, light), results, strict=True):
        assert_exact(random_oracle, pool, ids, result)


# ---- pressure


def test_idle_sessions_shrink_to_their_guarantee_before_any_is_parked(pool, random_oracle):
    share = PoolShare(guaranteed_tokens=96)
    idle = [request(f"idle-{n}", 320, share, 4, seed=n) for n in range(2)]
    first_turns = [pool.generate(*r) for r in idle]
    before = pool.pool_stats()
    assert before.held_pages == 42
    parked = sum(events(pool, PARKED_SESSIONS).values())
    pool.generate(*request("busy", 500, FixedBudget(tokens=560), 4, seed=7))
    stats = pool.pool_stats()
    shrunk = events(pool, SHRUNK_PAGES)
    assert sum(shrunk[(f"idle-{n}", "idle")] for n in range(2)) > 0
    assert sum(events(pool, PARKED_SESSIONS).values()) == parked
    assert stats.idle_sessions == 3
    pressed = [entry for entry in pool.ledger().entries() if entry.reason == "pool_pressure"]
    assert pressed
    assert not any(entry.pinned for entry in pressed)
    # a shrunk session goes on, with what it has left, to the oracle's numbers
    ids, _, hints = idle[0]
    longer = [*ids, *first_turns[0].token_ids, *ids_of(40, 99)]
    spans = [*hints.spans[:-1], (hints.spans[-1].start, len(longer), "user", 0)]
    second = pool.generate(
        longer, sampling(8), RequestHints(session="idle-0", agent="idle-0", budget=share, spans=spans)
    )
    assert second.retention.continued_tokens == len(ids) + 3
    mine = [entry for entry in pool.ledger().entries() if entry.agent == "idle-0"]
    assert_exact(random_oracle, pool, longer, second, mine)


def test_a_session_without_a_budget_is_never_shrunk_only_parked(pool):
    ids, params, hints = request("whole", 400, None, 4)
    pool.generate(ids, params, hints)
    shrunk = sum(events(pool, SHRUNK_PAGES).values())
    pool.generate(*request("busy", 700, FixedBudget(tokens=800), 4, seed=7))
    assert events(pool, PARKED_SESSIONS)[("whole",)] == 1
    assert sum(events(pool, SHRUNK_PAGES).values()) == shrunk
    again = pool.generate(ids, params, hints)
    assert again.retention.continued_tokens == 0


def test_running_agents_above_their_guarantee_give_way_before_anyone_is_preempted(pool, random_oracle):
    preemptions = pool.pool_stats().preemptions
    greedy = request("greedy", 600, FixedBudget(tokens=800, guaranteed_tokens=160), 150, seed=3)
    modest = request("modest", 400, FixedBudget(tokens=480), 30, seed=4)
    with watching(pool) as watch:
        first = pool.submit(*greedy)
        next(iter(first))
        second = pool.submit(*modest)
        results = [first.result(120), second.result(120)]
    assert pool.pool_stats().preemptions == preemptions
    assert any(len(sample.rows) == 2 for sample in watch.samples), "they ran at the same time"
    pressed = [entry for entry in evictions_of(pool, results[0]) if entry.reason == "pool_pressure"]
    assert pressed, "the first gave way"
    assert not any(entry.pinned for entry in pressed)
    assert min(row.held for row in watch.rows(results[0]) if row.decoding) >= 10
    assert not [entry for entry in evictions_of(pool, results[1]) if entry.reason == "pool_pressure"]
    for (ids, _, _), result in zip((greedy, modest), results, strict=True):
        assert_exact(random_oracle, pool, ids, result)


def test_pins_hold_under_pressure_to_the_last(pool):
    pinned = request("pinned", 500, FixedBudget(tokens=640, guaranteed_tokens=352), 120, seed=5, pinned=320)
    other = request("other", 480, FixedBudget(tokens=560), 20, seed=6)
    with watching(pool) as watch:
        first = pool.submit(*pinned)
        next(iter(first))
        second = pool.submit(*other)
        results = [first.result(120), second.result(120)]
    assert [entry for entry in evictions_of(pool, results[0]) if entry.reason == "pool_pressure"]
    for row in watch.rows(results[0]):
        if row.computed_before >= 320:
            assert all(row.blocks[:20]), "a pinned page was taken"


def test_idle_sessions_hold_no_slot(pool):
    slots = pool.run_on_engine_thread(lambda llm, internals: llm.vllm_config.scheduler_config.max_num_seqs)
    for number in range(slots + 4):
        pool.generate(*request(f"brief-{number}", 20, FixedBudget(tokens=64), 2, seed=number))
    assert pool.pool_stats().idle_sessions > slots
    streams = [pool.submit(*request(f"now-{n}", 20, FixedBudget(tokens=48), 4, seed=n)) for n in range(slots)]
    assert all(len(stream.result(60).token_ids) == 4 for stream in streams)


# ---- what operators see


def test_each_agent_is_told_what_its_budget_did(pool):
    pool.generate(*request("bound", 500, FixedBudget(tokens=160), 8))
    pool.generate(*request("roomy", 100, FixedBudget(tokens=640), 8))
    tallies = {tally.agent: tally for tally in pool.agents()}
    bound, roomy = tallies["bound"], tallies["roomy"]
    assert (bound.budget_pages, bound.peak_pages, bound.budget_bound, bound.never_bound) == (10, 10, True, False)
    assert bound.evicted_pages >= 32 - 10
    assert roomy.never_bound
    assert (roomy.evicted_pages, roomy.peak_pages) == (0, 7)


# ---- what once made an engine wait for ever, or stop


@pytest.mark.parametrize(
    "budget",
    [PoolShare(guaranteed_tokens=160), FixedBudget(tokens=2000, guaranteed_tokens=160)],
    ids=["share", "fixed"],
)
def test_a_cached_prefix_as_large_as_the_pool_does_not_keep_a_request_waiting(pool, random_oracle, budget):
    first = request("first", 1000, budget, 2, seed=20)
    pool.generate(*first)
    pool.close_sessions()
    ids = [*first[0][:992], *ids_of(500, 21)]
    spans = [[0, 16, "system", 0], [16, 900, "retrieval", 0], [900, len(ids), "user", 0]]
    hints = RequestHints(session="second", agent="second", budget=budget, spans=spans)
    second = pool.submit(ids, sampling(4), hints).result(60)
    assert second.cached_tokens <= (63 - CHUNK_PAGES - 1) * 16
    assert_exact(random_oracle, pool, ids, second)


def test_room_made_of_the_pages_of_ones_own_cached_prefix_is_counted_anew(pool, random_oracle):
    pool.generate(*request("whole", 476, None, 4, seed=22))
    shared = request("shared", 476, PoolShare(guaranteed_tokens=96), 4, seed=23)
    pool.generate(*shared)  # idle now: its pages are about to be shrunk, and are the next one's cached prefix
    ids = [*shared[0][:464], *ids_of(100, 24)]
    spans = [[0, 16, "system", 0], [16, len(ids), "user", 0]]
    hints = RequestHints(session="next", agent="next", budget=FixedBudget(tokens=640), spans=spans)
    result = pool.generate(ids, sampling(8), hints)
    assert result.finish_reason == "length"
    assert_exact(random_oracle, pool, ids, result)


def test_pins_that_the_pool_cannot_hold_are_refused_whatever_the_guarantee(pool):
    budget = FixedBudget(tokens=2000, guaranteed_tokens=16)
    with pytest.raises(BudgetError, match="must stay"):
        pool.submit(*request("pins", 1200, budget, 8, pinned=1190))


def test_pins_above_the_guarantee_are_reserved_too(pool):
    pins = request("pins", 700, FixedBudget(tokens=960, guaranteed_tokens=16), 100, seed=25, pinned=640)
    running = pool.submit(*pins)
    next(iter(running))
    assert pool.pool_stats().reserved_pages >= 640 // 16
    other = pool.submit(*request("other", 400, FixedBudget(tokens=480), 8, seed=26))
    assert not events(pool, PREEMPTIONS)[("pins",)]
    assert other.result(60).finish_reason == running.result(60).finish_reason == "length"
    assert not events(pool, PREEMPTIONS)[("pins",)] + events(pool, PREEMPTIONS)[("other",)]


@pytest.mark.parametrize("hinted", [False, True])
def test_a_request_without_a_budget_never_outgrows_what_others_are_guaranteed(pool, hinted):
    if hinted:
        plain = request("whole", 320, None, 500, seed=27)
    else:
        plain = (ids_of(480, 27), sampling(400), RequestHints(agent="whole", spans=[[0, 480, "user", 0]]))
    first = pool.submit(*plain)
    next(iter(first))
    second = pool.submit(*request("guaranteed", 600, FixedBudget(tokens=560), 200, seed=28))
    assert second.result(120).finish_reason == first.result(120).finish_reason == "length"
    assert not events(pool, PREEMPTIONS)[("guaranteed",)]


def test_room_that_cannot_be_had_costs_nobody_anything(pool):
    for number in range(3):
        pool.generate(*request(f"idle-{number}", 60, FixedBudget(tokens=64), 2, seed=number))
    parked = sum(events(pool, PARKED_SESSIONS).values())
    running = pool.submit(*request("large", 700, FixedBudget(tokens=800), 60, seed=29))
    next(iter(running))
    held = pool.pool_stats().held_pages
    assert not pool.run_on_engine_thread(
        lambda llm, internals: internals.scheduler.kv_cache_manager.coordinator.single_type_managers[0]
        .pressure.make_room("nobody", 63)
    )  # fmt: skip
    assert pool.pool_stats().held_pages >= held
    assert sum(events(pool, PARKED_SESSIONS).values()) == parked
    assert running.result(60).finish_reason == "length"


def test_refusals_count_those_that_were_accepted_and_have_not_begun(pool, monkeypatch):
    monkeypatch.setattr(pool, "_admission", "refuse")
    waits = sum(events(pool, ADMISSION_WAITS).values())
    streams = [pool.submit(*request(f"burst-{n}", 632, FixedBudget(tokens=640), 8, seed=n)) for n in range(4)]
    outcomes = []
    for stream in streams:
        try:
            outcomes.append(stream.result(60).finish_reason)
        except BudgetError:
            outcomes.append("refused")
    assert outcomes.count("refused") == 3
    assert sum(events(pool, ADMISSION_WAITS).values()) == waits
