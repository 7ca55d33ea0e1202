"""Replay against the real engine: the same facts survive, and what survived is what the model still knows."""

import json

import pytest

from memdecay_adapters.evaluation.recorder import AttentionRecorder
from memdecay_adapters.evaluation.tokenised import tokenise_trace
from memdecay_adapters.evaluation.verify import EngineVerifier
from memdecay_agents import MemDecayConfig
from memdecay_agents.calibration import calibrate
from memdecay_agents.evaluation.cells import agreement, full_cache_difference
from memdecay_agents.evaluation.replay import Replay
from memdecay_agents.evaluation.report import EvaluationResult
from memdecay_agents.evaluation.synthetic import synthetic_trace
from memdecay_agents.evaluation.variants import Variant

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def trace(tokenizer):
    def count_tokens(text):
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    return tokenise_trace(synthetic_trace("planted", 1000, 400, count_tokens), tokenizer, MemDecayConfig())


def test_replay_predicts_real_eviction_and_real_eviction_decides_what_is_known(no_engine, trace, model_path, tmp_path):
    leader = Variant("memdecay", pinned=True)
    todo = [
        (leader, 0.5),
        (Variant("key_norm", pinned=True), 0.5),
        (Variant("recency", pinned=False), 0.5),
        (Variant("last_query", pinned=True), 0.6),
        (Variant("paper", pinned=True), 0.5),
        (leader, 0.1),
        (Variant("full", pinned=False), None),
    ]
    recording = AttentionRecorder(model_path, leader.config(), tmp_path).record(trace)
    replayed = Replay().outcomes(trace, recording, todo)
    verifier = EngineVerifier(None, trace.n_tokens, {"kv_cache_memory_bytes": 2**30})
    try:
        lifetimes = verifier.engine.record_lifetimes("decode_steps")
        verified = verifier.verify(trace, todo)
        verifier.engine.ledger().check_integrity()
        assert verifier.engine.pool_stats().free_pages == verifier.engine.pool_stats().total_pages
    finally:
        verifier.close()
    # a tenth of the trace cannot hold what must stay: left out, and no error
    assert {o.budget for o in verified} == {0.5, 0.6, 1.0}
    same, n = agreement([*replayed, *verified])
    assert n == 5 * len(trace.facts)
    assert same >= 0.95 * n
    kept, lost = ([o for o in verified if o.survived is survived] for survived in (True, False))
    assert kept
    assert lost
    assert sum(o.correct for o in kept) >= 0.9 * len(kept)
    assert sum(o.correct for o in lost) <= 0.5 * len(lost)
    for outcome in verified:
        if outcome.region == "system" and outcome.pinned:
            assert outcome.survived
    assert all(interval.value >= -0.34 for interval in full_cache_difference(verified).values())
    made = json.loads(json.dumps(EvaluationResult((*replayed, *verified)).as_json()))
    assert made["replay_agreement"] == same / n
    # what a live engine measured can be fitted, and holds no text
    profile = calibrate(lifetimes, traces=0)
    assert profile.queries > 0
    assert "user" in profile.regions
