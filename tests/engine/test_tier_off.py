"""A host tier that is off or full changes nothing, and one that cannot work is refused."""

from __future__ import annotations

import json

import pytest

from memdecay_adapters.engine import HostTier, Recall, vllm_arguments
from memdecay_adapters.engine.events import DROPPED_HOST_PAGES
from memdecay_adapters.engine.settings import EngineSettings
from memdecay_adapters.engine.tier.support import SCHEDULER
from memdecay_agents.errors import EngineError, MemDecayError
from memdecay_agents.recall import RetrievalHead
from tests.engine.chaos_engine import PAGE_BYTES
from tests.engine.small_vllm import CONFIG
from tests.engine.tier_talks import TIER, open_engine, serve

pytestmark = pytest.mark.engine


def test_off_changes_nothing_and_a_full_tier_neither(no_engine, random_llama_path):
    small = HostTier(max_bytes=2**26, max_bytes_per_agent=3 * PAGE_BYTES)
    with open_engine(random_llama_path, small) as engine:
        silent = serve(engine)
        dropped = engine.run_on_engine_thread(lambda llm, i: i.controller.events.total(DROPPED_HOST_PAGES))
        assert dropped > 0
        assert engine.pool_stats().host_pages == 3
    with open_engine(random_llama_path, None) as engine:
        off = serve(engine)
        assert "host" not in engine.metrics_text()
        assert engine.pool_stats().host_bytes is None
        with pytest.raises(EngineError, match="no host tier"):
            engine.recall("t", region="user")
    assert off == silent, "pages that are copied out and never asked for change nothing, byte for byte"
    assert not any(recalled for _, recalled in off[0])


# ---- what is said to vLLM, and what is refused


def test_off_says_nothing_of_it_to_vllm():
    assert "host_tier" not in json.dumps(vllm_arguments(CONFIG))
    assert "scheduler_cls" not in vllm_arguments(CONFIG)
    assert vllm_arguments(CONFIG, host_tier=TIER)["scheduler_cls"] == SCHEDULER
    assert "scheduler_cls" not in vllm_arguments(CONFIG, host_tier=HostTier(max_bytes=1))
    settings = EngineSettings(config=CONFIG, host_tier=TIER)
    sent = json.loads(json.dumps(settings.to_additional_config()))["memdecay"]
    assert EngineSettings.model_validate(sent) == settings


@pytest.mark.parametrize(
    ("tier", "engine_args", "message"),
    [
        (HostTier(max_bytes=1, recall=Recall()), {}, "it knows 1024 tokens"),
        (TIER, {"scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"}, "Leave it out"),
        (HostTier(max_bytes=1, recall=Recall(heads=(RetrievalHead(7, 0),))), {}, "not among 2 layers"),
    ],
)
def test_what_does_not_work_is_refused_at_start_up(no_engine, random_llama_path, tier, engine_args, message):
    with pytest.raises(MemDecayError, match=message):
        open_engine(random_llama_path, tier, **engine_args)


@pytest.mark.parametrize("fields", [{"max_bytes": 0}, {"max_bytes": 5, "max_bytes_per_agent": 6}, {"max_byte": 1}])
def test_a_tier_that_makes_no_sense_is_refused(fields):
    with pytest.raises(ValueError, match="max_byte"):
        HostTier(**fields)
