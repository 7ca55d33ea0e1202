"""The recall stage in the real engine: what left the device is answered again, verbatim, in other words, several."""

import dataclasses
import json

import pytest

from memdecay_adapters.evaluation.recall_stage import RecallVerifier
from memdecay_adapters.evaluation.tokenised import tokenise_trace
from memdecay_agents import MemDecayConfig
from memdecay_agents.evaluation.asking import ASKINGS
from memdecay_agents.evaluation.report import EvaluationResult
from memdecay_agents.evaluation.synthetic import synthetic_trace
from memdecay_agents.evaluation.variants import Variant

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def test_a_host_tier_brings_back_what_the_full_cache_knows(no_engine, tokenizer):
    def count_tokens(text):
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    trace = tokenise_trace(synthetic_trace("planted", 1000, 400, count_tokens), tokenizer, MemDecayConfig())
    trace = dataclasses.replace(trace, facts=trace.facts[1::2])
    todo = [(Variant("memdecay", pinned=True), 0.5), (Variant("full", pinned=False), None)]
    verifier = RecallVerifier(None, trace.n_tokens, "host", engine_args={"kv_cache_memory_bytes": 2**29})
    try:
        outcomes = verifier.recall(trace, todo, ASKINGS)
        verifier.engine.ledger().check_integrity()
        assert verifier.engine.pool_stats().free_pages == verifier.engine.pool_stats().total_pages
        returned = verifier.engine.ledger().returns()
    finally:
        verifier.close()
    assert len(returned) > 5
    unpinned = [o for o in outcomes if o.region != "system"]
    assert {o.asking for o in unpinned} == {"verbatim", "paraphrased", "several"}  # it has no questions of a user
    # four pages do not hold three facts: EVALUATION.md has what was measured
    for asking, share in (("verbatim", 0.9), ("paraphrased", 0.75), ("several", 0.3)):
        mine = [o for o in unpinned if o.asking == asking]
        ours, full = ([o for o in mine if o.policy == policy] for policy in ("memdecay", "full"))
        assert len(ours) == len(full) == 6
        assert sum(o.correct for o in full) >= 2
        assert sum(o.correct for o in ours) >= share * sum(o.correct for o in full)
        assert all(o.survived for o in full)
        assert sum(o.survived for o in ours) >= share * 6
    cells = json.loads(json.dumps(EvaluationResult(tuple(outcomes)).as_json()))["cells"]
    assert {cell["tier"] for cell in cells} == {"host"}
    assert {(cell["stage"], cell["asking"]) for cell in cells} == {("recall", way) for way in ASKINGS[:3]}
