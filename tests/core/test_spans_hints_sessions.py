import contextlib
import json
from itertools import pairwise

import numpy as np
import pytest
from core_helpers import lay, pieces
from hypothesis import given
from hypothesis import strategies as st

from memdecay_agents import REGIONS, MemDecayConfig, MemDecayError, RequestHints, SessionId, Span, SpanFlag
from memdecay_agents.errors import HintsError, RegionError, SpanError
from memdecay_agents.hints import MAX_HINTS_BYTES, MAX_SPANS
from memdecay_agents.spans import check_partition, flags_of_tokens, merge_adjacent, regions_of_tokens

CONFIG = MemDecayConfig()


@given(pieces(), st.integers(0, 500))
def test_a_partition_passes_and_gives_each_token_its_region(made, base):
    spans = lay(made, base)
    n = spans[-1].end - base
    check_partition(spans, base, base + n, REGIONS)
    regions, flags = regions_of_tokens(spans, base, n, CONFIG), flags_of_tokens(spans)
    assert regions.dtype == np.int8
    for span in spans:
        assert {REGIONS[index] for index in regions[span.start - base : span.end - base]} == {span.region}
        assert set(flags[span.start - base : span.end - base]) == {int(span.flags)}


@given(pieces())
def test_merging_keeps_every_token_and_leaves_no_equal_neighbours(made):
    spans = lay(made)
    merged = merge_adjacent(spans)
    assert np.array_equal(*(regions_of_tokens(s, 0, spans[-1].end, CONFIG) for s in (spans, merged)))
    assert np.array_equal(flags_of_tokens(spans), flags_of_tokens(merged))
    assert all(a[2:] != b[2:] for a, b in pairwise(merged))


@given(pieces(min_size=2), st.data())
def test_any_shift_of_one_boundary_is_refused(made, data):
    spans = lay(made)
    at = data.draw(st.integers(0, len(spans) - 1))
    shift = data.draw(st.sampled_from([-2, -1, 1, 2]))
    spans[at] = spans[at]._replace(end=spans[at].end + shift)
    with pytest.raises(SpanError):
        check_partition(spans, 0, sum(length for length, _, _ in made), REGIONS)


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([Span(0, 5, "user"), Span(4, 10, "plan")], r"\[4, 10\) 'plan': it overlaps span \[0, 5\) 'user'.*\[4, 5\)"),
        ([Span(0, 5, "user"), Span(6, 10, "plan")], r"\[6, 10\) 'plan': tokens \[5, 6\) between span \[0, 5\) 'user'"),
        ([Span(0, 11, "user")], r"\[0, 11\) 'user': it ends beyond the prompt of 10"),
        ([Span(0, 9, "user")], r"tokens \[9, 10\) after span \[0, 9\) 'user' have no region"),
        ([Span(0, 5, "user"), Span(5, 5, "plan"), Span(5, 10, "user")], r"\[5, 5\) 'plan': the span is empty"),
        ([Span(0, 10, "usr")], r"unknown region 'usr'; known are system"),
        ([], r"tokens \[0, 10\) after base 0 have no region"),
    ],
)
def test_what_is_no_partition_is_refused_with_the_spans_named(spans, message):
    with pytest.raises(SpanError, match=message):
        check_partition(spans, 0, 10, REGIONS)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(texts, texts, texts, texts)
def test_session_keys_round_trip_and_never_collide(tenant, thread, agent, branch):
    session = SessionId(tenant, thread, agent, branch)
    assert SessionId.parse(session.key()) == session
    assert SessionId.from_hints(tenant, session.hint_session, agent) == session
    assert RequestHints(tenant=tenant, session=session.hint_session, agent=agent).session_id == session


@given(st.lists(st.sampled_from(["a", "/", "%", "%2F", "%25", ""]), min_size=8, max_size=8))
def test_different_sessions_have_different_keys(fields):
    one, other = SessionId(*fields[:4]), SessionId(*fields[4:])
    assert (one == other) == (one.key() == other.key())


def test_malformed_session_keys_are_refused():
    with pytest.raises(HintsError, match="3 fields"):
        SessionId.parse("a/b/c")
    with pytest.raises(HintsError, match="3 fields"):
        RequestHints(session="a/b/c")


@given(pieces(), st.integers(0, 2**31 - 1), st.none() | st.integers(1, 10**6), st.lists(st.sampled_from(REGIONS)))
def test_hints_survive_json(made, turn, budget, pins):
    hints = RequestHints(
        tenant="t",
        session="th/b",
        agent="x|y",
        turn=turn,
        budget_tokens=budget,
        pins=pins,
        spans=merge_adjacent(lay(made)),
    )
    sent = hints.to_extra_args()
    assert RequestHints.from_extra_args(json.loads(json.dumps(sent))) == hints
    assert RequestHints.from_extra_args({"memdecay": hints}) == hints


def test_no_hints_is_none():
    assert RequestHints.from_extra_args(None) is None
    assert RequestHints.from_extra_args({"kv_transfer_params": {}}) is None


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"v": 2}, r"hints\.v"),
        ({"v": True}, r"hints\.v"),
        ({"budgets": 5}, r"hints\.budgets: unknown key"),
        ({"budget_tokens": 0}, r"hints\.budget_tokens"),
        ({"budget_tokens": 1.5}, r"hints\.budget_tokens"),
        ({"budget_tokens": float("nan")}, r"hints\.budget_tokens"),
        ({"turn": -1}, r"hints\.turn"),
        ({"turn": True}, r"hints\.turn"),
        ({"turn": "3"}, r"hints\.turn"),
        ({"base": 2**31}, r"hints\.base"),
        ({"pins": "system"}, r"hints\.pins"),
        ({"pins": [3]}, r"hints\.pins\[0\]"),
        ({"output_region": None}, r"hints\.output_region"),
        ({"spans": {}}, r"hints\.spans"),
        ({"spans": [[0, 5]]}, r"hints\.spans\[0\]"),
        ({"spans": [[0, 5, "user", 0], "abc"]}, r"hints\.spans\[1\]"),
        ({"spans": [[-1, 5, "user", 0]]}, r"hints\.spans\[0\]: start"),
        ({"spans": [[0, True, "user", 0]]}, r"hints\.spans\[0\]: end"),
        ({"spans": [[0, 5.0, "user", 0]]}, r"hints\.spans\[0\]: end"),
        ({"spans": [[0, 5, 7, 0]]}, r"hints\.spans\[0\]: region"),
        ({"spans": [[0, 5, "user", 4]]}, r"hints\.spans\[0\]: flags"),
        ({"spans": [[i, i, "u"] for i in range(MAX_SPANS + 1)]}, r"hints\.spans: 4097 spans, at most 4096"),
        ({"agent": "a" * MAX_HINTS_BYTES}, "bytes as JSON, at most"),
        ({"agent": object()}, "not plain JSON"),
        ({"agent": "\ud800"}, "not plain JSON"),
        ([], "should be a mapping"),
        (None, "should be a mapping"),
    ],
)
def test_malformed_hints_are_refused_with_the_field(message, place):
    with pytest.raises(HintsError, match=place):
        RequestHints.from_extra_args({"memdecay": message})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from([*RequestHints.model_fields, "other"]), json_values, max_size=4))
def test_anything_else_is_hints_or_our_own_error(message):
    with contextlib.suppress(MemDecayError):
        assert isinstance(RequestHints.from_extra_args({"memdecay": message}), RequestHints)


def test_large_hints_are_refused_when_sent_and_merging_saves_them():
    alternating = [Span(i, i + 1, REGIONS[i % 2]) for i in range(MAX_SPANS)]
    with pytest.raises(HintsError, match="bytes as JSON"):
        RequestHints(spans=alternating).to_extra_args()
    equal = [Span(i, i + 1, "user") for i in range(MAX_SPANS)]
    assert RequestHints(spans=equal).to_extra_args()["memdecay"]["spans"] == [[0, MAX_SPANS, "user", 0]]


def test_deeply_nested_hints_are_refused():
    nested = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(HintsError, match="not plain JSON"):
        RequestHints.from_extra_args({"memdecay": {"pins": nested}})


def test_hints_are_checked_against_prompt_and_configuration():
    RequestHints(spans=[Span(0, 8, "user")], pins=["plan"]).check(8, CONFIG)
    with pytest.raises(SpanError):
        RequestHints(spans=[Span(0, 8, "user")]).check(9, CONFIG)
    with pytest.raises(RegionError, match="'nonsense'"):
        RequestHints(spans=[Span(0, 8, "user")], pins=["nonsense"]).check(8, CONFIG)
    with pytest.raises(RegionError, match="'nonsense'"):
        RequestHints(spans=[Span(0, 8, "user")], output_region="nonsense").check(8, CONFIG)
    assert SpanFlag.PINNED | SpanFlag.SUPERSEDED == 3
