"""Counters that operators scrape: in this process, and among those of vLLM's own server."""

from __future__ import annotations

import json
import logging
import random
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from vllm import SamplingParams

from memdecay_adapters.engine import MemDecayEngine, gauges
from memdecay_adapters.engine.agent_tallies import AgentTally
from memdecay_adapters.engine.events import (
    COUNTERS,
    EVICTED_PAGES,
    MAX_LABEL_VALUES,
    MEASUREMENTS,
    REFRESHED_TOKENS,
    TIER_COUNTERS,
    EngineEvents,
)
from memdecay_adapters.engine.gauges import GAUGES, HELD_PAGES, TIER_GAUGES, GaugeSample, GaugeSchedule
from memdecay_adapters.engine.measurement_counts import count_measurement
from memdecay_adapters.engine.metrics import EventDeltas
from memdecay_adapters.engine.results import RetentionSummary
from memdecay_adapters.engine.trace_spans import attributes_of, span_of
from memdecay_agents import (
    MemDecayConfig,
    Observation,
    RequestHints,
    SessionId,
    SessionState,
    Span,
    get_policy,
)

pytestmark = pytest.mark.engine


def ask(engine, *, agent="clerk", tokens=400, budget=128):
    ids = random.Random(1).choices(range(3, 1000), k=tokens)
    spans = [[0, 16, "system", 0], [16, 300, "retrieval", 0], [300, tokens, "user", 0]]
    hints = RequestHints(session="t", agent=agent, budget_tokens=budget, spans=spans)
    return engine.generate(ids, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True), hints)


def samples_of(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(samples, name, **labels):
    return sum(
        value for (found, pairs), value in samples.items() if found == name and labels.items() <= dict(pairs).items()
    )


@pytest.fixture
def engine(engine_named):
    return engine_named("pressure")


def test_what_was_evicted_is_what_is_scraped(engine):
    before = samples_of(engine.metrics_text())
    result = ask(engine)
    after = samples_of(engine.metrics_text())
    assert result.retention.evictions > 0
    for region, pages in result.retention.freed_by_region.items():
        labels = {"agent": "clerk", "region": region, "reason": "over_budget"}
        name = "memdecay_evicted_pages_total"
        assert total(after, name, **labels) - total(before, name, **labels) == pages
    assert total(after, "memdecay_turns_total") - total(before, "memdecay_turns_total") == 1
    stats = engine.pool_stats()
    assert total(after, "memdecay_pool_pages", state="free") == stats.free_pages
    assert total(after, "memdecay_pool_pages", state="held") == stats.held_pages
    assert total(after, "memdecay_agent_peak_pages", agent="clerk") == 8
    assert total(after, "memdecay_agent_budget_pages", agent="clerk") == 8
    assert total(after, "memdecay_achieved_budget_ratio", agent="clerk") == 1.0
    for region, pages in result.retention.pages_held_by_region.items():
        assert total(after, "memdecay_held_pages", agent="clerk", region=region) == pages
    assert total(after, "memdecay_held_pages") == stats.held_pages


def test_measuring_and_planning_are_counted_with_what_they_did(engine):
    engine.reset_prefix_cache()  # else the prompt of the test before is found, and its chunks are not computed
    before = samples_of(engine.metrics_text())
    ask(engine, agent="measured")
    after = samples_of(engine.metrics_text())
    measurements = total(after, "memdecay_measurements_total", agent="measured")
    assert measurements >= 400 // 64, "each chunk of the prompt at least"
    for name in ("memdecay_measurement_seconds_total", "memdecay_planning_seconds_total"):
        assert 0 < total(after, name) - total(before, name) < 600


def test_every_counter_is_documented_and_named_by_convention(engine):
    ask(engine)
    families = {family.name: family for family in text_string_to_metric_families(engine.metrics_text())}
    assert not {spec.name for spec in (*TIER_COUNTERS, *TIER_GAUGES)} & families.keys(), "there is no host tier"
    for name, spec in COUNTERS.items():
        if spec in TIER_COUNTERS:
            continue
        assert families[name].type == "counter"
        assert families[name].documentation == spec.help
        assert name.startswith("memdecay_")
        assert not name.endswith("_total"), "the format adds it"


def test_an_eviction_is_a_structured_log_line_too(engine, caplog):
    with caplog.at_level(logging.DEBUG, logger="memdecay.engine"):
        result = ask(engine, agent="scribe")
    records = [record for record in caplog.records if getattr(record, "memdecay", {}).get("event") == "evicted_pages"]
    assert {record.memdecay["region"] for record in records} == set(result.retention.freed_by_region)
    for record in records:
        assert record.memdecay["request"] == result.retention.request_id
        assert f"reason={record.memdecay['reason']}" in record.getMessage()
        json.dumps(record.memdecay)


def test_agents_beyond_a_bound_are_counted_together():
    events = EngineEvents()
    for number in range(MAX_LABEL_VALUES + 50):
        events.count(EVICTED_PAGES, f"agent-{number}", "user", "over_budget")
    counts = events.of(EVICTED_PAGES)
    assert counts["(other)", "user", "over_budget"] == 50
    assert len(counts) == MAX_LABEL_VALUES + 1
    assert events.total(EVICTED_PAGES) == MAX_LABEL_VALUES + 50


def test_a_log_line_is_one_line_whatever_an_agent_is_called(caplog):
    events = EngineEvents()
    name = 'bob"\nevent=refused_admissions count=9 agent=x'
    with caplog.at_level(logging.INFO, logger="memdecay.engine"):
        events.note(EVICTED_PAGES, name, "user", "over_budget", by=2, detail=ValueError("a b"))
    (record,) = caplog.records
    assert record.getMessage() == (
        f'event=evicted_pages count=2 agent={json.dumps(name)} region=user reason=over_budget detail="a b"'
    )
    assert record.memdecay["agent"] == name
    json.dumps(record.memdecay)


def test_refreshed_tokens_are_counted_by_the_region_that_they_are_in():
    config = MemDecayConfig(page_size_tokens=16)
    state = SessionState(SessionId("t", "th", "a"), "a", config, get_policy("memdecay", config))
    state.begin_turn(RequestHints(spans=(Span(0, 20, "plan"), Span(20, 100, "user"))), 100)
    state.on_computed(100, 0)
    events = EngineEvents()
    mass = np.full(100, 0.004, dtype=np.float32)
    mass[[3, 4, 50]] = 0.1, 0.2, 0.3  # 100 times these: above the threshold; the others are below
    observation = Observation(np.arange(100), mass)
    state.observe(observation)
    count_measurement(events, state, observation)
    assert dict(events.of(REFRESHED_TOKENS)) == {("a", "plan"): 2, ("a", "user"): 1}
    assert events.total(MEASUREMENTS) == 1


def test_gauges_of_a_report_replace_the_older_ones_and_counts_add_up():
    older = EventDeltas({"memdecay_turns": [[["a"], 1]]}).with_gauges([GaugeSample(HELD_PAGES, ("a", "user"), 3)])
    newer = EventDeltas({"memdecay_turns": [[["a"], 2]]}).with_gauges([GaugeSample(HELD_PAGES, ("b", "user"), 4)])
    both = older.aggregate(newer)
    assert both.data["memdecay_held_pages"] == [(["b", "user"], 4)]
    assert both.reduce() == {"memdecay_turns": 3}
    plain = EventDeltas({"memdecay_measurement_seconds": [[[], 2_000_000_000]]})
    assert plain.reduce() == {"memdecay_measurement_seconds": 2.0}


def test_gauges_are_read_seldom_enough_to_cost_little_and_once_more_at_the_end():
    schedule = GaugeSchedule()
    assert schedule.is_due(3)
    schedule.took(seconds=0.0)
    assert not schedule.is_due(3), "some seconds apart"
    assert schedule.is_due(0), "nothing runs any more: what is shown then stays"
    schedule.took(seconds=1000.0)
    assert not schedule.is_due(0), "reading them is slow"


def test_agents_of_gauges_are_bounded_too():
    events = EngineEvents()
    tallies = [AgentTally(f"agent-{n}", budget_pages=10, peak_pages=n) for n in range(MAX_LABEL_VALUES + 50)]
    samples = [sample for sample in gauges._achieved(tallies, events) if sample.spec is gauges.BUDGET_USE]
    assert len(samples) == MAX_LABEL_VALUES + 1
    assert max(sample.value for sample in samples if sample.labels == ("(other)",)) == (MAX_LABEL_VALUES + 49) / 10


def test_a_span_holds_numbers_and_names_only():
    summary = asdict(
        RetentionSummary(
            session="s", request_id="r", agent="a", turn=1, policy="memdecay", page_size_tokens=16, budget_pages=None,
            guaranteed_pages=None, budget_bound=True, continued_tokens=0, rewound_tokens=0, divergent_region=None,
            pages_held=2, pages_total=3, peak_pages_prefill=3, peak_pages_decode=2, evictions=1, shortfall_pages=0,
            freed_by_region={"user": 1},
        )
    )  # fmt: skip
    attributes = attributes_of(summary)
    assert attributes["memdecay.freed_pages.user"] == 1
    assert "memdecay.budget_pages" not in attributes, "no budget is no attribute: spans have no null"
    assert all(isinstance(value, (str, int, bool)) for value in attributes.values())


def test_a_request_that_is_traced_leaves_a_span_in_its_callers_trace():
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    request = SimpleNamespace(arrival_time=1.0, trace_headers={"traceparent": caller})
    plain = dict.fromkeys(RetentionSummary.__dataclass_fields__, 1) | {"freed_by_region": {}}
    span_of(request, plain)
    (span,) = exporter.get_finished_spans()
    assert span.name == "memdecay.retention"
    assert format(span.context.trace_id, "032x") == caller.split("-")[1]
    assert span.start_time == 10**9
    assert span.attributes["memdecay.pages_held"] == 1


@pytest.mark.parametrize("time", [1, 2])
def test_vllms_own_registry_serves_them_and_a_budget_that_never_bound_is_warned_of(
    no_engine, random_llama_path, caplog, time
):
    # twice: Prometheus' own registry outlives an engine
    engine = MemDecayEngine(
        random_llama_path,
        config=MemDecayConfig(page_size_tokens=16),
        engine_args={
            "dtype": "float32",
            "max_num_batched_tokens": 64,
            "kv_cache_memory_bytes": 2**26,
            "disable_log_stats": False,
        },
    )
    with engine:
        result = ask(engine)
        ask(engine, agent="roomy", budget=4000)
        served = REGISTRY.get_sample_value(
            "memdecay_evicted_pages_total",
            {"model_name": engine.model_path, "engine": "0", "agent": "clerk", "region": "retrieval",
             "reason": "over_budget"},
        )  # fmt: skip
        assert served == result.retention.freed_by_region["retrieval"]
        labels = {"model_name": engine.model_path, "engine": "0"}
        for spec in (one for one in GAUGES.values() if one not in TIER_GAUGES):
            found = [
                sample.value
                for family in REGISTRY.collect()
                if family.name == spec.name
                for sample in family.samples
                if labels.items() <= sample.labels.items()
            ]
            assert found, f"{spec.name} is served"
        held = {
            agent: sum(
                REGISTRY.get_sample_value("memdecay_held_pages", {**labels, "agent": agent, "region": region}) or 0
                for region in engine.config.region_names
            )
            for agent in ("clerk", "roomy")
        }
        assert held == {"clerk": 8, "roomy": 26}, "the sessions live on, and are shown as they were left"
        with caplog.at_level(logging.WARNING, logger="memdecay.engine"):
            engine.close()
    (warning,) = [record.memdecay for record in caplog.records if record.memdecay["event"] == "unbound_budgets"]
    assert (warning["agent"], warning["budget_pages"], warning["longest_turn_pages"]) == ("roomy", 250, 26)
    assert list(engine.metrics.collect()) == []
