"""Which requests of a step are measured: no engine, the controller alone."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from memdecay_adapters.engine.controller import EvictionController
from memdecay_adapters.engine.settings import EngineSettings
from memdecay_agents import MemDecayConfig, RequestHints, Span

STRIDE = 4


def request(number: int) -> SimpleNamespace:
    hints = RequestHints(session=f"s{number}", agent="a", budget_tokens=64, spans=(Span(0, 8, "user"),))
    return SimpleNamespace(
        request_id=f"r{number}",
        sampling_params=SimpleNamespace(extra_args=dict(hints.to_extra_args())),
        num_prompt_tokens=8,
        num_computed_tokens=0,
        num_tokens=8,
        max_tokens=200,
        prompt_token_ids=list(range(8)),
        all_token_ids=list(range(8)),
        skip_reading_prefix_cache=False,
        is_finished=lambda: False,
    )


def measured_steps(begins: list[int], steps: int) -> list[dict[str, int]]:
    """Request id to the queries that its measurement stands for, step by step; requests begin at given steps."""
    config = MemDecayConfig(page_size_tokens=16, measure_every_steps=STRIDE)
    controller = EvictionController(EngineSettings(config=config), 16, 64, 1000)
    requests = [request(number) for number in range(len(begins))]
    found = []
    for step in range(steps):
        scheduled = {}
        for one, begin in zip(requests, begins, strict=True):
            if step == begin:
                controller.start(one)
            if step >= begin:
                scheduled[one.request_id] = 8 if step == begin else 1
        _, observed, _ = controller.step(scheduled)
        for one in requests:
            if one.request_id in scheduled:
                one.num_computed_tokens += scheduled[one.request_id]
                one.num_tokens = one.num_computed_tokens + 1
        found.append({name: controller._requests[name].represented_queries for name in observed})
    return found


def test_alone_a_request_is_measured_at_its_stride():
    steps = measured_steps([0], 14)
    assert [step for step, observed in enumerate(steps) if observed] == [0, 4, 8, 12]
    assert steps[4] == {"r0": STRIDE}


@settings(deadline=None)
@given(st.lists(st.integers(0, 12), min_size=2, max_size=5))
def test_requests_that_began_apart_are_soon_measured_in_the_same_steps_and_no_query_is_lost(begins):
    steps = measured_steps(begins, 60)
    for number, begin in enumerate(begins):
        stands_for = [observed.get(f"r{number}", 0) for observed in steps]
        last = max(step for step, queries in enumerate(stands_for) if queries)
        assert sum(stands_for) == 8 + last - begin  # the chunk, and every decode step up to the last measured one
        assert 60 - last <= STRIDE
    settled = [observed for step, observed in enumerate(steps) if step > max(begins) + STRIDE and observed]
    assert all(len(observed) == len(begins) for observed in settled)
    assert len(settled) <= 60 // STRIDE
