"""Operations in any order on a real engine, as hypothesis finds them; `make soak` runs many more of the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.engine.chaos import RANGES, Chaos, chaos_engine
from tests.engine.oracle import Oracle

pytestmark = pytest.mark.engine


def an_operation(name: str) -> Any:
    """A rule for one of the chaos's operations, while it would do anything."""

    def operate(self: ChaosMachine, **numbers: int) -> None:
        self.chaos.do(name, **numbers)

    operate.__name__ = name
    numbers = {key: st.integers(least, most) for key, (least, most) in RANGES[name].items()}
    return precondition(lambda self: self.chaos.enabled(name))(rule(**numbers)(operate))


class ChaosMachine(RuleBasedStateMachine):
    """All examples run on one engine: each must leave it as it found it."""

    chaos: Chaos
    """The engine that all examples share."""
    examples = 0

    add, append, rewind = an_operation("add"), an_operation("append"), an_operation("rewind")
    fork, share, abort = an_operation("fork"), an_operation("share"), an_operation("abort")
    preempt, shrink_pool, grow_pool = an_operation("preempt"), an_operation("shrink_pool"), an_operation("grow_pool")
    close_sessions, finish_all = an_operation("close_sessions"), an_operation("finish_all")
    steps, go_on = an_operation("steps"), an_operation("append")

    @initialize(texts=st.lists(st.integers(0, 9999), min_size=3, max_size=3))
    def begin(self, texts: list[int]) -> None:
        """Three agents at once: together they want more than the pool has."""
        for agent, text in enumerate(texts):
            self.chaos.do("add", tenant=0, thread=agent, agent=0, budget=(0, 2, 4)[agent], text=text, length=240,
                          new_tokens=24, then_steps=4)  # fmt: skip

    def teardown(self) -> None:
        """End everything; now and then after a run of A, B, A beside the sessions that are idle."""
        if self.chaos.engine.closed:
            return  # the example has failed already
        ChaosMachine.examples += 1
        note("\n".join(self.chaos.trace))
        if ChaosMachine.examples % 4 == 0:
            self.chaos.same_twice(text=ChaosMachine.examples, length=300, other_length=200)
        assert self.chaos.reset() == 0, "pages did not come back"


@pytest.fixture
def chaos(no_engine, random_llama_path):
    engine = chaos_engine(random_llama_path)
    yield Chaos(engine, Oracle(random_llama_path))
    engine.close()


def test_a_chaos_of_operations_keeps_every_invariant(chaos):
    ChaosMachine.chaos, ChaosMachine.examples = chaos, 0
    run_state_machine_as_test(
        ChaosMachine,
        settings=settings(
            max_examples=12, stateful_step_count=40, derandomize=True, deadline=None, database=None,
            # an engine that stopped on a fault cannot try a shorter example
            phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
    counts = chaos.counts
    assert set(RANGES) <= set(counts), "an operation was never done"
    assert min(counts[what] for what in ("continued", "prefix_hits", "aborted", "refused", "same_twice")) > 0
    stats = chaos.engine.pool_stats()
    assert stats.preemptions > 10
    assert stats.parked_sessions > 10
    assert chaos.engine.ledger().summary().evicted > 200
