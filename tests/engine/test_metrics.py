"""Counters that operators scrape: in this process, and among those of vLLM's own server."""

from __future__ import annotations

import json
import logging
import random

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from vllm import SamplingParams

from memdecay_adapters.engine import MemDecayEngine
from memdecay_adapters.engine.events import COUNTERS, EVICTED_PAGES, MAX_LABEL_VALUES, EngineEvents
from memdecay_agents import MemDecayConfig, RequestHints

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


def test_every_counter_is_documented_and_named_by_convention(engine):
    ask(engine)
    families = {family.name: family for family in text_string_to_metric_families(engine.metrics_text())}
    for name, spec in COUNTERS.items():
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
        with caplog.at_level(logging.WARNING, logger="memdecay.engine"):
            engine.close()
    (warning,) = [record.memdecay for record in caplog.records if record.memdecay["event"] == "unbound_budgets"]
    assert (warning["agent"], warning["budget_pages"], warning["longest_turn_pages"]) == ("roomy", 250, 26)
    assert list(engine.metrics.collect()) == []
