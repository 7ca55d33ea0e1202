"""Operations in any order on a real engine, as hypothesis finds them; `make soak` runs many more of the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.engine.chaos import Chaos
from tests.engine.chaos_engine import PAGE, TIER, chaos_engine
from tests.engine.chaos_ranges import RANGES
from tests.engine.oracle import Oracle

pytestmark = pytest.mark.engine


def an_operation(name: str) -> Any:
    """A rule for one of the chaos's operations, while it would do anything."""

    def operate(self: ChaosMachine, **numbers: int) -> None:
        self.chaos.do(name, **numbers)

    operate.__name__ = name
    return precondition(lambda self: self.chaos.enabled(name))(rule(**integers(name))(operate))


def integers(name: str) -> dict[str, Any]:
    """Strategies for an operation's numbers."""
    return {key: st.integers(least, most) for key, (least, most) in RANGES[name].items()}


class ChaosHouse:
    """Keeps one engine for all examples: each must leave it as it found it. One that failed is replaced."""

    def __init__(self, model_folder: str) -> None:
        self._folder = model_folder
        self._oracle = Oracle(model_folder)
        self.chaos = Chaos(chaos_engine(model_folder, TIER), self._oracle)

    def next_example(self) -> Chaos:
        if self.chaos.failed:
            self.close()
            self.chaos = Chaos(chaos_engine(self._folder, TIER), self._oracle)
        return self.chaos

    def close(self) -> None:
        self.chaos.engine.close()


class ChaosMachine(RuleBasedStateMachine):
    """The operations as rules; their numbers as integers in their ranges."""

    house: ChaosHouse

    def __init__(self) -> None:
        super().__init__()
        self.chaos = self.house.next_example()
        self.runs_twice = False

    add, append, rewind = an_operation("add"), an_operation("append"), an_operation("rewind")
    fork, share, abort = an_operation("fork"), an_operation("share"), an_operation("abort")
    recall, repair = an_operation("recall"), an_operation("repair")
    preempt, shrink_pool, grow_pool = an_operation("preempt"), an_operation("shrink_pool"), an_operation("grow_pool")
    close_sessions, finish_all = an_operation("close_sessions"), an_operation("finish_all")
    steps = an_operation("steps")

    @precondition(lambda self: self.chaos.conversations)
    @rule(**integers("append"))
    def next_turn(self, **numbers: int) -> None:
        """Agents mostly wait for an answer before they go on."""
        if self.chaos.live:
            self.chaos.do("finish_all")
        self.chaos.do("append", **numbers)

    @initialize(texts=st.lists(st.integers(0, 9999), min_size=3, max_size=3))
    def begin(self, texts: list[int]) -> None:
        """Three agents at once: together they want more than the pool has."""
        self.runs_twice = texts[0] % 3 == 0
        for agent, text in enumerate(texts):
            self.chaos.do("add", tenant=0, thread=agent, agent=0, budget=(0, 2, 4)[agent], text=text, length=240,
                          new_tokens=24, then_steps=4)  # fmt: skip

    def teardown(self) -> None:
        """End everything; now and then after a run of A, B, A beside the sessions that are idle."""
        if self.chaos.failed:
            return
        if self.runs_twice:
            self.chaos.same_twice(text=len(self.chaos.trace), length=300, other_length=200)
        assert self.chaos.reset() == 0, "pages did not come back"


@pytest.fixture(scope="module")
def house(engine_house, random_llama_path):
    engine_house.close()
    house = ChaosHouse(random_llama_path)
    yield house
    house.close()


@pytest.mark.parametrize("spare_pages", [-2, -1, 0, 1])
def test_a_continued_turn_begins_once_its_new_pages_are_free_and_not_before(house, spare_pages):
    chaos = house.next_example()
    chaos.do("add", tenant=0, thread=0, agent=0, budget=0, text=1, length=200, new_tokens=8)
    chaos.do("finish_all")
    computed, known = 40 + 200 + 8 - 1, 40 + 200 + 8 + 90
    new_pages = -(-known // PAGE) - -(-computed // PAGE)
    stats = chaos.engine.pool_stats()
    chaos.do("shrink_pool", pages=stats.free_pages - new_pages - spare_pages)
    before = chaos.invariants.begun["continued"]
    chaos.do("append", which=0, text=2, length=90, new_tokens=4)
    chaos.do("steps", most=2)
    assert chaos.invariants.begun["continued"] - before == (spare_pages >= 0)
    chaos.do("finish_all")
    assert chaos.invariants.begun["continued"] - before == 1
    assert chaos.reset() == 0


def test_a_chaos_of_operations_keeps_every_invariant(house):
    ChaosMachine.house = house
    run_state_machine_as_test(
        ChaosMachine,
        settings=settings(
            max_examples=12, stateful_step_count=40, derandomize=True, deadline=None, database=None,
            # a shorter example would take a new engine for each try
            phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
    chaos, counts = house.chaos, house.chaos.counts
    assert set(RANGES) <= set(counts), "an operation was never done"
    assert min(chaos.invariants.begun[what] for what in ("continued", "prefix_hits", "reruns", "compared_pages")) > 0
    assert min(counts[what] for what in ("aborted", "same_twice", "recalled_sessions")) > 0, counts
    stats = chaos.engine.pool_stats()
    assert stats.preemptions > 4
    assert stats.parked_sessions > 10
    totals = chaos.engine.ledger().summary()
    assert totals.evicted > 200
    assert totals.restored > 20
