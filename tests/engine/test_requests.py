"""What a request may say: refused where it is submitted, harmless where it slips through, and ignored when absent."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from memdecay_adapters.engine.events import BYPASSES
from memdecay_adapters.engine.stream import RequestStream
from memdecay_agents import RequestHints
from memdecay_agents.errors import BudgetError, EngineError, RegionError, SpanError
from tests.engine.oracle import logprob_distance
from tests.engine.prompts import hints, prompt_ids
from tests.engine.watching import watching

pytestmark = pytest.mark.engine

N = 200


def sampling(new_tokens: int = 8, **fields) -> SamplingParams:
    return SamplingParams(
        **{"temperature": 0, "max_tokens": new_tokens, "ignore_eos": True, "skip_reading_prefix_cache": True, **fields}
    )


def cut(*spans, **fields) -> RequestHints:
    return RequestHints(agent="planner", spans=[list(span) for span in spans], **fields)


WHOLE = (0, N, "user")


@pytest.mark.parametrize(
    ("request_hints", "error", "message"),
    [
        (cut((0, 100, "system"), (90, N, "user")), SpanError, r"span \[90, 200\).*overlaps span \[0, 100\)"),
        (cut((0, 100, "system"), (110, N, "user")), SpanError, r"\[100, 110\)|100"),
        (cut((0, 250, "user")), SpanError, r"250"),
        (cut((0, N - 1, "user")), SpanError, r"199"),
        (cut(), SpanError, "0"),
        (cut((0, N, "memory")), SpanError, r"'memory'.*known are.*MemDecayConfig\(regions="),
        (cut(WHOLE, pins=["memory"]), RegionError, r"'memory'.*known are"),
        (cut(WHOLE, output_region="memory"), RegionError, r"'memory'.*known are"),
        (cut((0, 160, "system"), (160, N, "user"), budget_tokens=128), BudgetError,
         r"planner.*10 pinned pages exceed the budget of 8 pages.*Raise budget_tokens to at least \d+.*unpin 'system'"),
        (cut(WHOLE, budget_tokens=48), BudgetError, r"budget of 3 pages is below.*Raise budget_tokens to at least \d+"),
        (cut(WHOLE, pins=["user"], budget_tokens=160), BudgetError, "unpin 'user'"),
        (cut((100, N, "user"), base=100), EngineError, r"base=100.*Send the whole prompt, with base=0"),
    ],
)  # fmt: skip
def test_hints_that_cannot_be_served_are_refused_and_the_engine_goes_on(
    engine, tokenizer, request_hints, error, message
):
    ids = prompt_ids(tokenizer, N, seed=120)
    running = engine.submit(ids, sampling())
    with pytest.raises(error, match=message):
        engine.submit(ids, sampling(), request_hints)
    assert len(running.result(60).token_ids) == 8


@pytest.mark.parametrize(
    ("prompt", "parameters", "message"),
    [
        ([], sampling(), "it is empty"),
        ([5] * 8192, sampling(), r"8192 tokens.*Lower max_tokens to at most 0"),
        ([5] * 8000, sampling(193), r"Lower max_tokens to at most 192"),
        ([5] * 8, sampling(n=2, temperature=1.0), r"n=2.*Send n requests"),
    ],
)
def test_prompts_and_parameters_that_cannot_be_served_are_refused(engine, prompt, parameters, message):
    with pytest.raises(EngineError, match=message):
        engine.submit(prompt, parameters)
    assert len(engine.generate([5, 6, 7], sampling(2)).token_ids) == 2


def test_the_budget_that_the_remedy_names_is_accepted_and_kept_and_one_page_less_is_not(engine, tokenizer):
    ids = prompt_ids(tokenizer, N, seed=121)
    with pytest.raises(BudgetError) as refusal:
        engine.submit(ids, sampling(24), cut(WHOLE, budget_tokens=16))
    least = int(re.search(r"at least (\d+)", refusal.value.remedy)[1])
    with pytest.raises(BudgetError):
        engine.submit(ids, sampling(24), cut(WHOLE, budget_tokens=least - 16))
    with watching(engine) as watch:
        result = engine.generate(ids, sampling(24), cut(WHOLE, budget_tokens=least))
    assert result.retention.shortfall_pages == 0
    assert all(row.held <= least // 16 for row in watch.rows(result) if row.decoding)


def test_requests_without_hints_are_untouched_beside_budgeted_ones(engine, oracle, tokenizer):
    plain_ids, other = prompt_ids(tokenizer, 300, seed=122), prompt_ids(tokenizer, 320, seed=123)
    with watching(engine) as watch:
        plain = engine.submit(plain_ids, sampling(20, logprobs=10))
        budgeted = engine.submit(other, sampling(20), hints(320, 208))
        result, evicting = plain.result(120), budgeted.result(120)
    assert evicting.retention.evictions > 0
    assert any(len(sample.rows) == 2 for sample in watch.samples)
    assert result.retention is None
    assert all(row.holes == 0 for row in watch.rows(result))
    rows = oracle.logprobs([*plain_ids, *result.token_ids[:-1]])
    assert logprob_distance(rows, len(plain_ids), result) <= 2e-4


MALFORMED = [
    ("nonsense", "hints"),
    ([1, 2], "hints"),
    ({"v": 2}, "hints"),
    ({"spans": [[0, 10**9, "user", 0]]}, "spans"),
    ({"spans": [[-1, 4, "user", 0]]}, "hints"),
    ({"spans": [[0, N, "nowhere", 0]]}, "spans"),
    ({"spans": [[0, N, "user", 0]], "pins": ["nowhere"]}, "unknown_region"),
    ({"spans": [[0, N, "user", 0]], "budget_tokens": -3}, "hints"),
    ({"spans": [[50, N, "user", 0]], "base": 50}, "spans"),
    ({"spans": [[0, N, "user", 0]], "session": 3.5}, "hints"),
    ({1: 2}, "hints"),
    ({"spans": float("nan")}, "hints"),
]


def bypass_submit(engine, name, ids, parameters):
    """Hand a request to the engine thread as it is."""
    parameters.output_kind = RequestOutputKind.DELTA
    stream = RequestStream(name, engine._thread.abort)
    engine._thread.add(stream, {"prompt_token_ids": ids}, parameters)
    return stream


def bypasses(engine):
    counts = engine.run_on_engine_thread(lambda llm, internals: internals.controller.events.of(BYPASSES))
    return Counter({reason: count for (reason,), count in counts.items()})


def test_a_malformed_message_that_reaches_the_scheduler_is_counted_and_served_without_regions(engine, tokenizer):
    ids = prompt_ids(tokenizer, N, seed=124)
    expected = engine.generate(ids, sampling(2)).token_ids
    for number, (message, code) in enumerate(MALFORMED):
        before = bypasses(engine)
        parameters = sampling(2, extra_args={"memdecay": message})
        result = bypass_submit(engine, f"malformed-{number}", ids, parameters).result(60)
        assert bypasses(engine) - before == {code: 1}, message
        assert result.token_ids == expected
        assert result.retention is None


@pytest.mark.parametrize("budget_tokens", [1, 16, 64])
def test_a_budget_below_the_minimum_that_reaches_the_scheduler_frees_what_it_may_and_says_so(
    engine, tokenizer, budget_tokens
):
    ids = prompt_ids(tokenizer, N, seed=125)
    extra_args = hints(N, budget_tokens, pins=["plan"]).to_extra_args()
    result = bypass_submit(engine, f"tight-{budget_tokens}", ids, sampling(4, extra_args=extra_args)).result(60)
    retention = result.retention
    assert retention.budget_pages == budget_tokens // 16
    assert retention.shortfall_pages > 0
    assert retention.evictions > 0
    assert retention.freed_by_region.keys().isdisjoint({"system", "plan"})


def test_a_request_that_could_never_get_its_pages_is_refused_and_nobody_waits_behind_it(engine_named, tokenizer):
    engine = engine_named("small_pool")
    total = engine.pool_stats().total_pages
    ids = prompt_ids(tokenizer, 900, seed=126)
    for budget_tokens, refused in [(16 * total, True), (16 * (total - 9), False)]:
        request_hints = hints(900, budget_tokens)
        if refused:
            with pytest.raises(BudgetError, match=rf"the pool has {total}.*set a budget of at most {16 * (total - 9)}"):
                engine.submit(ids, sampling(300), request_hints)
        else:
            assert engine.generate(ids, sampling(4), request_hints).finish_reason == "length"


def test_seeds_hold_for_prompts_of_several_chunks_alone_and_beside_others(engine, tokenizer):
    # stock vLLM 0.32 ends here on a CPU: "CPU Generator does not use offset"
    ids = prompt_ids(tokenizer, 600, seed=91)

    def seeded(seed):
        return engine.submit(ids, sampling(12, temperature=1.0, seed=seed), hints(600, None))

    alone = [seeded(seed).result(120).token_ids for seed in (1, 2)]
    assert alone[0] != alone[1]
    streams = [seeded(1), seeded(2), engine.submit(ids, sampling(12), hints(600, None))]
    together = [stream.result(120).token_ids for stream in streams]
    assert together[:2] == alone


def test_a_malformed_message_does_not_lift_the_default_budget(engine_named, tokenizer):
    engine = engine_named("small_pool")
    ids = prompt_ids(tokenizer, 500, seed=127)
    parameters = sampling(4, extra_args={"memdecay": {"v": 1, "budget_tokens": -1}})
    retention = bypass_submit(engine, "malformed-budgeted", ids, parameters).result(60).retention
    assert retention.budget_pages == 320 // 16
    assert retention.pages_held <= 320 // 16
