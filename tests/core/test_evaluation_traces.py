"""Made-up traces and trace files."""

import json
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memdecay_agents import REGIONS, Span
from memdecay_agents.errors import TraceError
from memdecay_agents.evaluation.synthetic import GENERATORS, synthetic_trace
from memdecay_agents.evaluation.synthetic.builder import CHOICES
from memdecay_agents.evaluation.synthetic.values import POOLS
from memdecay_agents.evaluation.trace_files import quoted_facts, read_traces
from memdecay_agents.evaluation.traces import TokenTrace


def count_tokens(text: str) -> int:
    return max(1, round(1.3 * len(text.split())))


def text_of(message) -> str:
    calls = [value for call in message.get("tool_calls", ()) for value in call["args"].values()]
    return " ".join([message["content"], *calls])


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(list(GENERATORS)), st.integers(0, 10**6), st.sampled_from([450, 1000, 1700, 4000]))
def test_facts_stand_once_in_every_region_and_no_wrong_answer_stands_anywhere(generator, seed, n_tokens):
    trace = synthetic_trace(generator, seed, n_tokens, count_tokens)
    assert {fact.id.partition("/")[0] for fact in trace.facts} == set(REGIONS)
    texts = [text_of(message) for message in trace.messages]
    words = set(" ".join(texts).replace(".", " ").split())
    for fact in trace.facts:
        assert [fact.text in text for text in texts] == [at == fact.message for at in range(len(texts))]
        right, *wrong = fact.question.candidates
        assert right in fact.text
        assert len(wrong) >= CHOICES - 1
        assert not words & set(wrong)
    assert len({fact.id for fact in trace.facts}) == len(trace.facts)
    total = sum(count_tokens(text) + 6 for text in texts)
    assert 0.8 < total / n_tokens < 1.2


@given(st.sampled_from(list(GENERATORS)), st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_a_seed_makes_one_trace(generator, seed):
    first = synthetic_trace(generator, seed, 1700, count_tokens)
    assert first == synthetic_trace(generator, seed, 1700, count_tokens)
    assert first != synthetic_trace(generator, seed + 1, 1700, count_tokens)


@pytest.mark.parametrize("held", ["paraphrased", "retold"])
def test_a_held_out_generator_shares_no_attribute_and_no_sentence(held):
    held_out = GENERATORS[held]
    for name, tuning in GENERATORS.items():
        assert tuning.attributes.keys() == POOLS.keys()
        for part in ("attributes", "sentences"):
            mine = {item for items in getattr(tuning, part).values() for item in items}
            theirs = {item for items in getattr(held_out, part).values() for item in items}
            assert name == held or not mine & theirs


def test_long_traces_have_results_that_become_out_of_date_and_never_one_with_a_fact():
    trace = synthetic_trace("planted", 1, 4000, count_tokens)
    assert trace.supersedes
    holds_fact = {fact.message for fact in trace.facts}
    for new, old in trace.supersedes.items():
        assert old < new
        assert old not in holds_fact
        assert trace.messages[old]["role"] == trace.messages[new]["role"]
    assert any(fact.mentioned_again for fact in trace.facts)


@pytest.mark.parametrize(
    ("generator", "n_tokens", "rule"), [("nonsense", 450, "unknown"), ("planted", 100, "at least")]
)
def test_what_cannot_be_made_is_refused(generator, n_tokens, rule):
    with pytest.raises(TraceError, match=rule):
        synthetic_trace(generator, 0, n_tokens, count_tokens)


@given(st.sampled_from(list(GENERATORS)), st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_a_control_differs_only_in_that_its_mentions_name_nothing(generator, seed):
    named, control = (synthetic_trace(generator, seed, 1700, count_tokens, mentions=on) for on in (True, False))
    assert {fact.id for fact in control.facts} == {fact.id for fact in named.facts}

    def mentioned(trace):
        text = " ".join(text_of(message) for message in trace.messages)
        names = [*(fact.question.attribute for fact in trace.facts), "other one"]
        return {name for name in names for said in GENERATORS[generator].mention if said.format(attribute=name) in text}

    again = {fact.question.attribute for fact in named.facts if fact.mentioned_again}
    assert mentioned(named) == again == {fact.question.attribute for fact in control.facts if fact.mentioned_again}
    assert mentioned(control) <= {"other one"}


# --- turns ------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from(REGIONS)), min_size=1, max_size=12))
def test_turns_end_where_the_agent_stops_writing(pieces):
    spans, at = [Span(0, 5, "user")], 5
    for length, region in pieces:
        spans.append(Span(at, at + length, region))
        at += length
    trace = TokenTrace("t", "s", at, np.arange(at), tuple(spans))
    written = {p for s in spans if s.region in ("plan", "tool_in", "scratchpad") for p in range(s.start, s.end)}
    turns, before = trace.turns(), 0
    for turn in turns:
        assert not written & set(range(before, turn.prompt_end))
        assert set(range(turn.prompt_end, turn.end)) <= written
        before = turn.end
    assert before == at


# --- files ------------------------------------------------------------------------------------


def call(name, **arguments):
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": name, "args": arguments}]}


def result(text):
    return {"role": "tool", "content": text, "tool_call_id": "c"}


def test_facts_of_a_trace_without_probes_are_what_later_calls_quote():
    messages = [
        {"role": "user", "content": "Cancel my order."},
        call("orders"),
        result('{"order_id": 12446, "note": "left at 1244"}'),
        call("cancel", order_id=12446, reason="no"),
        result('{"order_id": 12446, "other": 77120}'),
        {"role": "user", "content": "And 77120?"},
        call("cancel", order_id=77120),
        call("cancel", order_id=1244),
        call("again", order_id=12446),
    ]
    facts = list(quoted_facts(messages))
    found = [(fact.message, fact.text, fact.needed_by_message) for fact in facts]
    # the newest result that says it; not what a person said, nor part of a longer number
    assert found == [(2, "12446", 3), (2, "1244", 7), (4, "12446", 8)]


def test_a_file_with_probes(tmp_path):
    path = tmp_path / "mine.jsonl"
    rows = {
        "id": "a",
        "messages": [{"role": "user", "content": "I drive a Saab. It is old."}],
        "probes": [
            {"id": "p", "question": "?", "answers": ["Saab"], "source": '"I drive a Saab."', "message": 0},
            {"id": "q", "question": "?", "answers": [], "source": "never said", "message": 0},
        ],
    }
    path.write_text(json.dumps(rows) + "\n\n")
    (trace,) = read_traces(path)
    assert (trace.source, trace.id) == ("mine", "a")
    assert [(fact.id, fact.text) for fact in trace.facts] == [("p", "I drive a Saab")]


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("{", "no JSON"),
        ("[]", "messages"),
        ('{"messages": []}', "messages"),
        ('{"messages": [{"role": "robot"}]}', "message 0.*role"),
        ('{"messages": [{"role": "user", "content": 3}]}', "no text"),
        ('{"messages": [{"role": "assistant", "tool_calls": [{"name": "x"}]}]}', "tool call"),
        ('{"messages": [{"role": "user", "content": "x"}], "probes": [{"id": 1}]}', "lacks"),
        (
            '{"messages": [{"role": "user", "content": "x"}], "probes": [{"id": 1, "source": "x", "message": 7}]}',
            "message 7 of 1",
        ),
        ("", "no trace"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(tmp_path, line, rule):
    path = tmp_path / "bad.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(TraceError, match=rule):
        read_traces(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(TraceError, match="traces build"):
        read_traces(tmp_path / "none.jsonl")


def test_only_so_many_traces_are_read(tmp_path):
    path = tmp_path / "many.jsonl"
    draw = Random(0)
    path.write_text(
        "".join(json.dumps({"messages": [{"role": "user", "content": str(draw.random())}]}) + "\n" for _ in range(5))
    )
    assert len(read_traces(path, most=2)) == 2
