"""Rows that are left alone in a decode step: planning would have freed nothing. The controller alone, no engine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memdecay_adapters.engine.controller import EvictionController
from memdecay_adapters.engine.settings import EngineSettings
from memdecay_agents import MemDecayConfig, RequestHints, Span
from memdecay_agents.agent_budgets import AgentBudget, ContextFraction, FixedBudget, PoolShare
from memdecay_agents.ledger import EvictionReason

PAGE, POOL_PAGES = 16, 40


class Row:
    """A request between scheduler and controller, with the pages that it holds."""

    def __init__(self, controller: EvictionController, name: str, prompt: int, budget: AgentBudget) -> None:
        hints = RequestHints(session=name, agent="a", budget=budget, spans=(Span(0, prompt, "user"),))
        self.controller, self.name, self.prompt = controller, name, prompt
        self.held: list[int] = []
        self.length = 0
        self.request = SimpleNamespace(
            request_id=name, sampling_params=SimpleNamespace(extra_args=dict(hints.to_extra_args())),
            num_prompt_tokens=prompt, num_computed_tokens=0, num_tokens=prompt, max_tokens=200,
            prompt_token_ids=list(range(prompt)), all_token_ids=list(range(prompt)),
            skip_reading_prefix_cache=False, is_finished=lambda: False,
        )  # fmt: skip
        controller.start(self.request)
        controller.matched_tokens(self.request, 0)

    def step(self) -> bool:
        """Schedule one step as the cache manager does; whether its row was left alone."""
        processed, chunk = self.request.num_computed_tokens, min(48, self.request.num_tokens)
        tokens = chunk if processed < self.prompt - 1 else 1
        tokens = min(tokens, self.request.num_tokens - processed)
        settled = self.controller.is_settled(self.name, self.length, processed)
        freed = self.controller.pages_to_evict(self.name, self.held, self.length, processed) if self.held else ()
        assert not (settled and freed), f"{freed} would have gone from a row that was left alone"
        self.held = [page for page in self.held if page not in freed]
        needed = -(-(processed + tokens) // PAGE)
        if settled:
            assert needed == self.length, "a row that was left alone needed a page"
        self.held += range(self.length, needed)
        self.length = needed
        self.controller.allocated(self.name, self.held, self.length)
        self.controller.step({self.name: tokens})
        self.request.num_computed_tokens += tokens
        self.request.num_tokens = max(self.request.num_tokens, self.request.num_computed_tokens + 1)
        return settled

    def press(self) -> None:
        """Pool pressure takes a page."""
        found = self.controller.with_state(self.name)
        if found is not None:
            processed = self.request.num_computed_tokens
            plan = found[1].plan(processed, self.held, pages_to_free=1)
            freed = self.controller.book(self.name, plan, processed, EvictionReason.pool_pressure)
            self.held = [page for page in self.held if page not in freed]


def controller() -> EvictionController:
    config = MemDecayConfig(page_size_tokens=PAGE, recent_tokens=20)
    return EvictionController(EngineSettings(config=config), PAGE, 48, POOL_PAGES)


BUDGETS = st.one_of(
    st.integers(32, 200).map(lambda tokens: FixedBudget(tokens=tokens)),
    st.floats(0.2, 0.9).map(lambda part: ContextFraction(fraction=part, floor_tokens=64)),
    st.integers(64, 100).map(lambda tokens: PoolShare(guaranteed_tokens=tokens)),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(BUDGETS, st.integers(20, 300), st.integers(0, 60)), min_size=1, max_size=3), st.data())
def test_no_plan_frees_anything_of_a_row_that_is_left_alone(wanted, data):
    one, rows = controller(), []
    pressed = data.draw(st.sets(st.integers(0, 120), max_size=6))
    for step in range(120):
        for number, (budget, prompt, begins) in enumerate(wanted):
            if begins == step:
                rows.append(Row(one, f"r{number}", prompt, budget))
        for row in rows:
            if step in pressed:
                row.press()
            row.step()


@pytest.mark.parametrize("budget", [FixedBudget(tokens=96), ContextFraction(fraction=0.5, floor_tokens=96)])
def test_most_decode_steps_leave_the_row_alone(budget):
    row = Row(controller(), "r", 200, budget)
    steps = [row.step() for _ in range(70)]
    assert sum(steps[-64:]) >= 56  # all but those that need a page, and the first


def test_a_share_of_the_pool_is_looked_at_in_each_step():
    row = Row(controller(), "r", 200, PoolShare(guaranteed_tokens=96))
    assert not any(row.step() for _ in range(70))
