"""Planted faults: each is caught at the step where it happens, ends the engine, and leaves nobody waiting."""

from __future__ import annotations

import threading

import pytest
from vllm import SamplingParams

from memdecay_adapters.engine import MemDecayEngine, worker_rows
from memdecay_agents import MemDecayConfig
from memdecay_agents.errors import EngineError, IntegrityError, LedgerError
from memdecay_agents.selection import EvictionPlan
from tests.engine.conversations import passage
from tests.engine.prompts import hints

pytestmark = pytest.mark.engine


def prompt_ids(tokens: int, seed: int) -> list[int]:
    return passage(seed, tokens)[0]


def manager_of(internals):
    return internals.scheduler.kv_cache_manager.coordinator.single_type_managers[0]


def sampling(new_tokens: int = 200) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, skip_reading_prefix_cache=True)


@pytest.fixture
def doomed(no_engine, random_llama_path):
    """An engine that the test will break; it must still close, and another must be able to follow."""
    engine = MemDecayEngine(
        random_llama_path,
        config=MemDecayConfig(page_size_tokens=16),
        engine_args={"dtype": "float32", "max_num_batched_tokens": 256, "kv_cache_memory_bytes": 2**25},
        check_integrity=True,
    )
    yield engine
    closing = threading.Thread(target=engine.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive(), "close() hangs"
    assert engine.closed


def assert_stopped_by(engine, streams, fault, message):
    """Every waiting caller gets the error, every later one too."""
    for stream in streams:
        with pytest.raises(EngineError, match="stopped on a fault") as caught:
            stream.result(120)
        assert isinstance(caught.value.__cause__, fault)
        assert message in str(caught.value)
        with pytest.raises(EngineError):
            list(stream)
        assert stream.done
    with pytest.raises(EngineError, match="stopped on a fault"):
        engine.submit([1, 2, 3], sampling(1)).result(60)
    with pytest.raises(EngineError, match="stopped on a fault"):
        engine.pool_stats()


def two_requests(engine):
    """One that evicts at once, and one without hints that merely shares the engine."""
    bystander = engine.submit(prompt_ids(60, seed=90), sampling())
    evicting = engine.submit(prompt_ids(500, seed=91), sampling(), hints(500, 256))
    return [bystander, evicting]


def test_a_stale_worker_row_is_caught(doomed, monkeypatch):
    monkeypatch.setattr(worker_rows, "null_evicted_pages", lambda runner, evicted: None)
    assert_stopped_by(doomed, two_requests(doomed), IntegrityError, "the row is stale")


@pytest.mark.parametrize("times", [1, 2])
def test_a_freed_block_that_is_in_use_or_free_already_is_caught(doomed, times):
    stream = doomed.submit(prompt_ids(100, seed=92), sampling())
    next(iter(stream))

    def free_again(llm, internals):
        manager = manager_of(internals)
        (blocks,) = manager.req_to_blocks.values()
        victims = [blocks[2]] if times == 1 else [next(iter(manager.block_pool.free_block_queue.get_all_free_blocks()))]
        manager.block_pool.free_blocks(victims)

    doomed.run_on_engine_thread(free_again)
    message = "which is free" if times == 1 else "freed twice"
    assert_stopped_by(doomed, [stream], IntegrityError, message)


def test_a_page_that_leaves_a_row_and_is_not_freed_is_caught(doomed):
    stream = doomed.submit(prompt_ids(200, seed=94), sampling())
    next(iter(stream))

    def forget_to_free(llm, internals):
        manager = manager_of(internals)
        (blocks,) = manager.req_to_blocks.values()
        blocks[3] = manager._null_block

    doomed.run_on_engine_thread(forget_to_free)
    assert_stopped_by(doomed, [stream], IntegrityError, "1 null block make")


@pytest.mark.parametrize(("page", "message"), [(2, "which is free"), (-1, "2 live rows hold it")])
def test_a_page_of_an_idle_session_that_is_freed_behind_its_back_is_caught(doomed, page, message):
    # the last page is not full, so that the pool hands it out first: to the request that comes next
    doomed.generate(prompt_ids(200, seed=95), sampling(8), hints(200, 4096, session="idle"))

    def free_a_page(llm, internals):
        (session,) = internals.controller.sessions
        manager_of(internals).block_pool.free_blocks([session.blocks[page]])

    doomed.run_on_engine_thread(free_a_page)
    stream = doomed.submit(prompt_ids(60, seed=96), sampling())
    assert_stopped_by(doomed, [stream], IntegrityError, message)


def test_a_plan_that_frees_a_pinned_page_is_caught(doomed):
    def corrupt(llm, internals):
        controller = internals.controller
        new_state = controller._new_state

        def new_state_with_a_bad_planner(tracked, session_id):
            state = new_state(tracked, session_id)
            # page 1 is system, which is pinned
            state.plan = lambda *a, **k: EvictionPlan(pages=(1,), order=(1,), scores={1: 0.0}, parts={1: {}})
            return state

        controller._new_state = new_state_with_a_bad_planner

    doomed.run_on_engine_thread(corrupt)
    assert_stopped_by(doomed, two_requests(doomed), IntegrityError, "chose a pinned page")


def test_a_page_that_only_the_ledger_holds_is_caught(doomed):
    stream = doomed.submit(prompt_ids(200, seed=93), sampling(), hints(200, 4096, session="lost"))
    next(iter(stream))

    def book_one_too_many(llm, internals):
        (tracked,) = internals.controller._requests.values()
        internals.controller.ledger.allocated(tracked.state.key, [200])

    doomed.run_on_engine_thread(book_one_too_many)
    assert_stopped_by(doomed, [stream], LedgerError, "held by the ledger and not by the engine")


def test_an_error_inside_vllms_step_ends_the_engine_and_nobody_waits(doomed):
    streams = two_requests(doomed)
    waiting = []

    def wait_for_result():
        try:
            streams[0].result(120)
        except EngineError as error:
            waiting.append(error)

    thread = threading.Thread(target=wait_for_result, daemon=True)
    thread.start()

    def explode(*args, **kwargs):
        raise RuntimeError("planted")

    doomed.run_on_engine_thread(lambda llm, internals: setattr(internals.scheduler, "schedule", explode))
    thread.join(60)
    assert not thread.is_alive()
    assert len(waiting) == 1
    assert_stopped_by(doomed, streams, RuntimeError, "planted")
