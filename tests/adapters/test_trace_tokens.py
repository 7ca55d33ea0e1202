"""Traces as tokens: where facts lie and when they are needed, in made-up traces and public ones."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from memdecay_adapters.evaluation.tokenised import tokenise_trace
from memdecay_adapters.trace_sources import bfcl
from memdecay_adapters.trace_sources.build import build
from memdecay_agents import REGIONS
from memdecay_agents.errors import TraceError
from memdecay_agents.evaluation.synthetic import synthetic_trace
from memdecay_agents.evaluation.trace_files import read_traces
from tests.adapters.evaluation_inputs import CONFIG, own_trace_file

TRACES = os.environ.get("MEMDECAY_TRACES")
needs_traces = pytest.mark.skipif(
    TRACES is None, reason="set MEMDECAY_TRACES to a folder of trace files; `memdecay traces build` makes one"
)


@pytest.mark.parametrize("generator", ["planted", "paraphrased"])
def test_facts_lie_where_their_sentences_are_and_regions_are_inferred(tokenizer, count_tokens, generator):
    for seed in range(3):
        trace = synthetic_trace(generator, seed, 450, count_tokens)
        tokens = tokenise_trace(trace, tokenizer, CONFIG)
        assert abs(tokens.n_tokens - 450) < 45
        assert tokens.spans[-1].end == tokens.n_tokens
        assert {span.region for span in tokens.spans} == set(REGIONS)
        for fact, found in zip(trace.facts, tokens.facts, strict=True):
            text = tokenizer.decode(tokens.token_ids[found.start : found.end].tolist())
            assert fact.text in text
            assert len(text) <= len(fact.text) + 6
            assert found.region == fact.id.partition("/")[0]
            assert found.needed_at == tokens.n_tokens


def test_superseded_messages_are_flagged_from_their_successor_on(tokenizer, count_tokens):
    trace = synthetic_trace("planted", 1, 4000, count_tokens)
    tokens = tokenise_trace(trace, tokenizer, CONFIG)
    assert len(tokens.superseded) == len(trace.supersedes) > 0
    for (start, end, since), (new, old) in zip(tokens.superseded, sorted(trace.supersedes.items()), strict=True):
        assert start < end <= since
        assert trace.messages[old]["content"][:20] in tokenizer.decode(tokens.token_ids[start:end].tolist())
        assert trace.messages[new]["content"][:20] in tokenizer.decode(tokens.token_ids[since : since + 30].tolist())


def test_quoted_values_are_needed_when_the_call_begins(tokenizer, tmp_path):
    (trace, *_) = read_traces(own_trace_file(tmp_path / "own.jsonl"))
    tokens = tokenise_trace(trace, tokenizer, CONFIG)
    assert len(tokens.facts) == 5
    for fact in tokens.facts:
        assert fact.region == "tool_out"
        assert fact.end <= fact.needed_at
        after = tokenizer.decode(tokens.token_ids[fact.needed_at : fact.needed_at + 8].tolist())
        assert "check_order" in after


def test_a_fact_that_is_not_there_is_refused(tokenizer, count_tokens):
    trace = synthetic_trace("planted", 1, 450, count_tokens)
    lost = dataclasses.replace(trace.facts[0], text="never said")
    with pytest.raises(TraceError, match="does not occur"):
        tokenise_trace(dataclasses.replace(trace, facts=(lost,)), tokenizer, CONFIG)


# --- public data sets -------------------------------------------------------------------------


def test_reference_calls_are_read_without_evaluating_anything():
    class Shop:
        def order(self, item, amount=1):
            if amount > 5:
                raise ValueError("too many")
            return {"item": item, "amount": amount}

    methods = {"order": Shop().order}
    method, positional, named, arguments = bfcl._parsed("order('pears', amount=2)", methods)
    assert arguments == {"item": "pears", "amount": 2}
    assert json.loads(bfcl._result(method, positional, named)) == {"item": "pears", "amount": 2}
    assert bfcl._result(method, ["pears", 9], {}) == "Error during execution: too many"
    for text in ("order(open('x'))", "order(", "__import__('os')", "eval('1')"):
        assert bfcl._parsed(text, methods) is None


def test_unknown_sources_are_refused(tmp_path):
    with pytest.raises(TraceError, match="known are"):
        build(["nonsense"], tmp_path, print)


@needs_traces
def test_the_shared_traces_are_read_with_their_facts(tokenizer):
    expected = {"agentdojo": (60, 39), "bfcl_memory": (2, 36), "bfcl_multi_turn": (158, 242)}
    for name, (n_traces, n_facts) in expected.items():
        traces = read_traces(Path(str(TRACES)) / f"{name}.jsonl")
        assert (len(traces), sum(len(trace.facts) for trace in traces)) == (n_traces, n_facts)
        short = [trace for trace in traces if sum(len(m.get("content") or "") for m in trace.messages) < 3000][:3]
        for trace in short:
            assert len(tokenise_trace(trace, tokenizer, CONFIG).facts) == len(trace.facts)
