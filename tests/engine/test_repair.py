"""Between two turns a session's newest tokens are computed again with everything there; then its budget holds again."""

from __future__ import annotations

import contextlib

import pytest

from memdecay_adapters.engine import HostTier, Repair
from memdecay_adapters.engine.plain_vllm import vllm_arguments
from memdecay_agents import RequestHints
from memdecay_agents.errors import EngineError, UnsupportedError
from memdecay_agents.spans import Span
from tests.engine.counting import counted
from tests.engine.prompts import ids
from tests.engine.tier_talks import BUDGET, MAX_DISTANCE, PAGE, TIER, Talk, hints, open_engine, sampling

pytestmark = pytest.mark.engine

LAST = 96


@pytest.fixture(scope="module")
def engine(engine_house, random_llama_path):
    engine_house.close()
    with open_engine(random_llama_path, TIER) as engine:
        yield engine


@pytest.fixture
def talk(engine, request):
    engine.close_sessions()
    return Talk(engine, request.node.name, seed=len(request.node.name))


def test_after_a_repair_the_newest_tokens_are_what_they_are_with_everything_there(talk, random_oracle):
    talk.turn()
    talk.turn()
    n_tokens = len(talk.tokens) - 1
    done = talk.repair(last_tokens=LAST)
    assert done.continued_tokens == pytest.approx(n_tokens - LAST, abs=PAGE - 1)
    assert done.recalled_pages
    assert done.pages_held <= done.budget_pages
    for _ in range(2):
        talk.turn()
        assert talk.distance(random_oracle) <= MAX_DISTANCE
    talk.engine.ledger().check_integrity()


def test_the_oracle_without_the_repair_says_otherwise(talk, random_oracle):
    """The comparison can fail: it matters how the newest tokens were computed."""
    talk.turn()
    talk.turn()
    assert talk.repair(last_tokens=LAST) is not None
    talk.turn()
    assert talk.distance(random_oracle) <= MAX_DISTANCE
    moves = talk.moves
    talk.repairs.clear()
    unrepaired = [move for move in moves if move.request_id not in repair_requests(moves)]
    talk.engine.ledger().check_integrity()
    original, type(talk).moves = type(talk).moves, property(lambda _: unrepaired)
    try:
        assert talk.distance(random_oracle) > 100 * MAX_DISTANCE
    finally:
        type(talk).moves = original


def repair_requests(moves):
    """The requests for which pages came back to be there in a repair."""
    return {move.request_id for move in moves if move.reason == "swapped_in" and "repair" in move.parts}


def test_an_explanation_says_that_a_page_came_back_for_a_repair(talk):
    talk.turn()
    talk.turn()

    def let_the_policy_decide(_, internals):
        for session in internals.controller.sessions:
            session.state.recent_share = 0.0  # else what came back goes again: it is older

    talk.engine.run_on_engine_thread(let_the_policy_decide)
    done = talk.repair(last_tokens=LAST)
    stayed = [page for page in done.recalled_pages if done.holds_page(page)]
    assert stayed, "the plan has what it had, and some of what came back is worth more than what stayed before"
    page = stayed[0]
    told = talk.engine.explain(done.session, page=page)
    (came,) = [one.came_back for one in told.pages]
    assert came.for_repair
    assert came.evidence is None
    assert "came back in turn 1 (for a repair)" in told.text


def test_a_repair_is_no_turn_and_changes_nothing_but_keys_and_values(talk):
    talk.turn()
    talk.turn()
    engine = talk.engine

    def known():
        def read(_, internals):
            (session,) = internals.controller.sessions
            state = session.state
            return (
                state.turn, state.turns_begun, state.tokens.clock_ticks, state.tokens.n_tokens,
                state.tokens.refreshed_at_ticks.tolist(), state.tokens.accumulated_relative.tolist(),
                state.tokens.region.tolist(), session.prompt_tokens, session.hints, len(session.token_ids),
            )  # fmt: skip

        return engine.run_on_engine_thread(read)

    repaired = ("memdecay_recalls_total", "repair", "swapped")
    before, turns, repairs = known(), counted(engine, "memdecay_turns_total"), counted(engine, *repaired)
    assert talk.repair(last_tokens=LAST) is not None
    assert known() == before
    assert counted(engine, "memdecay_turns_total") == turns
    assert counted(engine, *repaired) == repairs + 1


def test_what_a_repair_has_computed_is_not_computed_again(talk):
    talk.turn()
    talk.turn()
    first = talk.repair(last_tokens=LAST)
    n_tokens = len(talk.tokens) - 1
    assert first is not None
    assert talk.repair(last_tokens=LAST) is None
    talk.turn()
    second = talk.repair(last_tokens=10_000)
    assert second.continued_tokens == pytest.approx(n_tokens, abs=PAGE - 1)


def test_what_saw_everything_when_it_was_first_computed_is_not_computed_again(talk):
    engine, prompt = talk.engine, ids(100, 3)
    spans = (Span(0, 16, "system"), Span(16, 100, "user"))
    engine.generate(prompt, sampling(), RequestHints(session="short", agent="a", budget_tokens=BUDGET, spans=spans))
    assert engine.repair("short") == [], "nothing was ever evicted"
    talk.turn()
    done = talk.repair(last_tokens=10_000)
    first_eviction = min(move.computed_tokens for move in talk.moves if move.reason == "over_budget")
    assert done.continued_tokens >= first_eviction // PAGE * PAGE > 0


def test_a_pool_without_room_for_everything_is_left_alone(talk):
    talk.turn()
    talk.turn()
    engine = talk.engine
    hold = engine.run_on_engine_thread(
        lambda _, internals: (pool := internals.scheduler.kv_cache_manager.block_pool).get_new_blocks(
            pool.get_num_free_blocks() - 8
        )
    )
    try:
        moves = len(talk.moves)
        assert talk.repair(last_tokens=LAST) is None
        assert len(talk.moves) == moves
    finally:
        engine.run_on_engine_thread(
            lambda _, internals: internals.scheduler.kv_cache_manager.block_pool.free_blocks(hold)
        )


def test_a_turn_that_comes_while_its_session_is_repaired_waits_and_goes_on_from_it(talk, random_oracle):
    talk.turn()
    talk.turn()
    engine = talk.engine
    request = wanted(engine, talk.thread)
    before = len(talk.moves)

    def both(_, __):
        """Between two steps: the repair first, then the turn of the same session."""
        repair = engine.submit(request.token_ids, sampling(1), request.hints)
        talk.tokens = [*talk.tokens, *ids(40, 7)]
        talk.prompt = list(talk.tokens)
        return repair, engine.submit(talk.prompt, sampling(), hints(len(talk.prompt), talk.thread, 200))

    repair, turn = engine.run_on_engine_thread(both)
    repaired, talk.result = repair.result(), turn.result()
    talk.tokens = [*talk.prompt, *talk.result.token_ids]
    talk.repairs.append((before, repaired.retention.continued_tokens))
    assert talk.result.retention.session == repaired.retention.session
    assert talk.result.retention.continued_tokens == len(request.token_ids)
    assert talk.distance(random_oracle) <= MAX_DISTANCE


def test_a_repair_that_is_stopped_leaves_a_session_that_goes_on(talk, random_oracle):
    talk.turn()
    talk.turn()
    engine = talk.engine
    request = wanted(engine, talk.thread, 200)

    def start_and_stop(llm, _):
        stream = engine.submit(request.token_ids, sampling(1), request.hints)
        engine._thread._take_commands()
        llm.step()
        engine._thread._abort(stream.request_id)
        return stream

    before = len(talk.moves)
    stopped = engine.run_on_engine_thread(start_and_stop).result()
    assert stopped.finish_reason == "abort"
    talk.repairs.append((before, stopped.retention.continued_tokens))
    talk.turn()
    assert 0 < talk.result.retention.continued_tokens < len(request.token_ids)
    assert talk.distance(random_oracle) <= MAX_DISTANCE
    engine.ledger().check_integrity()


def test_a_request_for_more_than_one_token_is_a_turn_within_its_budget(talk):
    talk.turn()
    talk.turn()
    engine = talk.engine
    request = wanted(engine, talk.thread)
    turns = counted(engine, "memdecay_turns_total")
    result = engine.generate(request.token_ids, sampling(4), request.hints)
    assert counted(engine, "memdecay_turns_total") == turns + 1
    assert result.retention.peak_pages_decode <= result.retention.budget_pages


def wanted(engine, thread, last_tokens=LAST):
    return engine.run_on_engine_thread(lambda _, __: next(engine._repairs.of("default", thread, None, last_tokens)))


def aborted_in_its_prompt(talk, tokens=300, steps=2):
    """A turn of which so many steps are computed."""
    talk.tokens = [*talk.tokens, *ids(tokens, 77)]

    def start_and_stop(llm, _):
        stream = talk.engine.submit(talk.tokens, sampling(), hints(len(talk.tokens), talk.thread, 200))
        talk.engine._thread._take_commands()
        for _ in range(steps):
            llm.step()
        talk.engine._thread._abort(stream.request_id)
        return stream

    stopped = talk.engine.run_on_engine_thread(start_and_stop).result()
    assert stopped.finish_reason == "abort"


def test_a_session_whose_turn_was_aborted_in_its_prompt_is_repaired_as_far_as_it_goes(talk):
    talk.turn()
    talk.turn()
    aborted_in_its_prompt(talk)
    request = wanted(talk.engine, talk.thread)
    assert request.hints.spans[-1].end == len(request.token_ids) < len(talk.tokens)
    assert talk.repair(last_tokens=LAST).repaired_tokens > 0
    assert talk.repair(last_tokens=LAST) is None


def test_a_waiting_turn_that_is_aborted_and_sent_again_waits_again(talk, random_oracle):
    talk.turn()
    talk.turn()
    engine, request, before = talk.engine, wanted(talk.engine, talk.thread), len(talk.moves)
    talk.tokens = [*talk.tokens, *ids(40, 7)]
    talk.prompt = list(talk.tokens)

    def all_at_once(llm, _):
        streams = [engine.submit(request.token_ids, sampling(1), request.hints)]
        for _ in range(2):
            streams.append(engine.submit(talk.prompt, sampling(), hints(len(talk.prompt), talk.thread, 200)))
            engine._thread._take_commands()
            if len(streams) == 2:
                llm.step()
                engine._thread._abort(streams[1].request_id)
        return streams

    repair, first, second = engine.run_on_engine_thread(all_at_once)
    assert first.result().finish_reason == "abort"
    talk.result = second.result()
    talk.tokens = [*talk.prompt, *talk.result.token_ids]
    talk.repairs.append((before, repair.result().retention.continued_tokens))
    assert talk.result.retention.session == repair.result().retention.session
    assert talk.result.retention.continued_tokens == len(request.token_ids)
    assert talk.distance(random_oracle) <= MAX_DISTANCE
    keys = engine.run_on_engine_thread(lambda _, internals: [one.state.key for one in internals.controller.sessions])
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("change", [{"prompt_logprobs": 1}, {}])
def test_hints_that_ask_for_a_repair_lift_no_budget(talk, change):
    """A client may say anything: without its session, or with one that is read anew, the request is a turn."""
    prompt = ids(600, 5)
    asked = hints(len(prompt), talk.thread, 200, repair_tokens=10)
    result = talk.engine.generate(prompt, sampling(1, **change), asked)
    assert result.retention.peak_pages_prefill <= result.retention.budget_pages + 64 // PAGE + 1
    assert result.retention.repaired_tokens == 0


def test_an_edited_history_that_is_read_anew_is_no_way_around_a_budget(talk):
    talk.turn()
    talk.turn()
    aborted_in_its_prompt(talk)
    request = wanted(talk.engine, talk.thread)
    anew = request.hints.model_copy(update={"rewind": "recompute"})
    result = talk.engine.generate(request.token_ids, sampling(1), anew)
    retention = result.retention
    assert retention.repaired_tokens or retention.peak_pages_prefill <= retention.budget_pages + 64 // PAGE + 1
    assert retention.pages_held <= retention.budget_pages


def test_a_repair_leaves_the_order_and_the_age_of_idle_sessions(talk):
    old, new = talk, Talk(talk.engine, f"{talk.thread}-new", seed=4)
    for one in (old, old, new, new):
        one.turn()

    def idle(_, internals):
        return [(one.home.thread_id, one.idle_since_seconds) for one in internals.controller.sessions]

    before = talk.engine.run_on_engine_thread(idle)
    assert [name for name, _ in before] == [old.thread, new.thread]
    assert new.repair(last_tokens=LAST) is not None
    assert old.repair(last_tokens=LAST) is not None
    assert talk.engine.run_on_engine_thread(idle) == before


def test_a_preempted_repair_is_waited_for_and_is_no_turn(talk):
    talk.turn()
    talk.turn()
    engine, request = talk.engine, wanted(talk.engine, talk.thread, 200)
    turns = counted(engine, "memdecay_turns_total")
    talk.prompt = talk.tokens = [*talk.tokens, *ids(40, 7)]

    def preempted(llm, _):
        repair = engine.submit(request.token_ids, sampling(1), request.hints)
        engine._thread._take_commands()
        llm.step()
        with contextlib.suppress(RuntimeError):  # idle sessions would be in its way; it preempts first
            llm.reset_prefix_cache(reset_running_requests=True)
        turn = engine.submit(talk.prompt, sampling(), hints(len(talk.prompt), talk.thread, 200))
        return repair, turn

    repair, turn = (one.result() for one in engine.run_on_engine_thread(preempted))
    assert turn.retention.session == repair.retention.session
    assert turn.retention.continued_tokens == len(request.token_ids)
    assert counted(engine, "memdecay_turns_total") == turns + 1
    engine.ledger().check_integrity()


def test_repairs_are_refused_where_nothing_would_come_of_them(engine, engine_house, random_llama_path):
    with pytest.raises(EngineError, match="last_tokens is 0"):
        engine.repair("t", last_tokens=0)
    assert engine.repair("nobody") == []
    with pytest.raises(UnsupportedError, match="embedded engine"):
        vllm_arguments(host_tier=HostTier(max_bytes=2**20, repair=Repair()))
