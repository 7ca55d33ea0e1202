"""Recordings, schedules and replays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memdecay_agents import LedgerEntry, Span
from memdecay_agents.errors import ConfigError, TraceError
from memdecay_agents.evaluation.outcome_store import OutcomeStore
from memdecay_agents.evaluation.outcomes import FactOutcome, at_risk, survived
from memdecay_agents.evaluation.recording import AttentionRecording
from memdecay_agents.evaluation.replay import Replay, _Session, turn_spans
from memdecay_agents.evaluation.schedule import computed_at_end, turn_steps
from memdecay_agents.evaluation.session_policies import SessionPolicies
from memdecay_agents.evaluation.traces import TokenFact, TokenTrace, Turn
from memdecay_agents.evaluation.variants import BASELINES, Variant, variants_of
from memdecay_agents.ledger_entry import EvictionReason
from memdecay_agents.session_state import SessionState
from memdecay_agents.sessions import SessionId
from memdecay_agents.spans import SpanFlag

PATTERN = (("system", 30), ("user", 60), ("plan", 25), ("retrieval", 90), ("tool_in", 20), ("tool_out", 80))


def trace_of(pieces=PATTERN * 2, superseded=()) -> TokenTrace:
    spans, at = [], 0
    for region, length in pieces:
        spans.append(Span(at, at + length, region))
        at += length
    facts = tuple(TokenFact(f"f{n}", s.region, s.start + 3, s.start + 12, at) for n, s in enumerate(spans))
    return TokenTrace("t", "test", at, np.arange(at), tuple(spans), facts, tuple(superseded))


def recording_of(n: int, seed: int = 0) -> AttentionRecording:
    rng = np.random.default_rng(seed)
    mass = np.tril(rng.random((n, n)) ** 4 + 1e-4)
    return AttentionRecording.of(
        np.arange(n), (mass / mass.sum(1, keepdims=True)).astype(np.float32), rng.random(n) + 1
    )


@given(st.integers(2, 60), st.integers(0, 99), st.data())
def test_mass_of_what_is_retained_is_what_a_dense_matrix_gives(n, seed, data):
    rng = np.random.default_rng(seed)
    mass = np.tril(rng.random((n, n)) + 0.1)
    mass /= mass.sum(1, keepdims=True)
    recording = AttentionRecording.of(np.arange(n), mass.astype(np.float32), np.ones(n))
    end = data.draw(st.integers(1, n))
    first = data.draw(st.integers(0, end - 1))
    kept = np.union1d(np.flatnonzero(rng.random(end) < 0.6), [0, *range(first, end)]).astype(np.int64)
    dense = mass[first:end][:, kept]
    expected = (dense / dense.sum(1, keepdims=True)).mean(0)
    assert np.allclose(recording.mass_of(first, end, kept), expected, atol=2e-3)
    assert np.allclose(recording.row(end - 1), mass[end - 1, :end], rtol=2e-3, atol=1e-5)


def test_recordings_come_back_from_disk_and_broken_ones_do_not(tmp_path):
    recording = recording_of(40)
    path = tmp_path / "deep" / "one.npz"
    assert AttentionRecording.load(path) is None
    recording.save(path)
    again = AttentionRecording.load(path)
    assert np.array_equal(again.packed, recording.packed)
    assert np.array_equal(again.key_norms, recording.key_norms)
    assert [p.name for p in path.parent.iterdir()] == ["one.npz"]
    path.write_bytes(path.read_bytes()[:-100])
    assert AttentionRecording.load(path) is None


def test_recordings_that_cannot_be_right_are_refused():
    bad = np.full((3, 3), np.nan, dtype=np.float32)
    with pytest.raises(TraceError, match="NaN"):
        AttentionRecording.of(np.arange(3), bad, np.ones(3))
    with pytest.raises(TraceError, match="norms"):
        AttentionRecording.of(np.arange(3), np.ones((3, 3), np.float32), np.ones(2))


@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(0, 50)), min_size=1, max_size=6),
    st.integers(1, 64),
)
def test_a_schedule_computes_every_position_once_and_in_order(pieces, chunk):
    turns, at = [], 0
    for prefilled, generated in pieces:
        turns.append(Turn(at + prefilled, at + prefilled + generated))
        at += prefilled + generated
    computed = 0
    for turn in turns:
        steps = list(turn_steps(turn, computed, chunk))
        assert steps[0].start == computed
        assert sum(step.samples for step in steps) == max(turn.end - turn.prompt_end, 1)
        for step in steps:
            assert step.start == computed
            assert 0 < step.end - step.start <= chunk
            computed = step.end
        assert computed == max(turn.prompt_end, turn.end - 1)
    assert computed == computed_at_end(turns)


def test_without_a_budget_nothing_goes_and_with_one_it_holds():
    trace = trace_of()
    recording = recording_of(trace.n_tokens)
    assert Replay().run(trace, recording, Variant("full", pinned=False), None).evictions == ()
    for variant in variants_of():
        if variant.policy != "full":
            result = Replay().run(trace, recording, variant, 0.5)
            assert len(result.held_pages) <= trace.n_tokens // 2 // 16
            system = [e for e in result.evictions if e.token_start < 30 or 305 <= e.token_start < 335]
            assert (not system) or not variant.pinned


def test_while_decoding_also_the_page_being_written_is_within_the_budget(monkeypatch):
    held = []
    step = _Session.step

    def watched(self, now):
        step(self, now)
        if now.is_decode:
            held.append(len(self.held))

    monkeypatch.setattr(_Session, "step", watched)
    trace = trace_of((("user", 120), ("scratchpad", 150)))
    Replay().run(trace, recording_of(trace.n_tokens), Variant("recency", pinned=False), 0.5)
    assert max(held) == round(0.5 * 270) // 16


def test_recency_keeps_the_first_page_and_the_newest():
    trace = trace_of()
    result = Replay().run(trace, recording_of(trace.n_tokens), Variant("recency", pinned=False), 0.5)
    budget = trace.n_tokens // 2 // 16
    last = (trace.n_tokens - 1) // 16
    assert result.held_pages == (0, *range(last - budget + 2, last + 1))
    gone = [entry.page for entry in result.evictions]
    assert gone == sorted(gone)


def test_small_keys_stay_in_a_replay():
    trace = trace_of()
    recording = recording_of(trace.n_tokens)
    norms = np.full(trace.n_tokens, 5.0, dtype=np.float32)
    norms[96:128] = 1.0
    recording = AttentionRecording(recording.token_ids, recording.packed, norms)
    held = Replay().run(trace, recording, Variant("key_norm", pinned=True), 0.5).held_pages
    assert {6, 7} <= set(held)


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from([v for v in variants_of() if v.policy != "full"]), st.sampled_from([0.4, 0.7]), st.integers(0, 9)
)
def test_a_replay_is_the_same_each_time(variant, budget, seed):
    trace, recording = trace_of(), recording_of(trace_of().n_tokens, seed)
    first = Replay().run(trace, recording, variant, budget)
    assert Replay().run(trace, recording, variant, budget) == first


def test_sessions_of_one_engine_are_planned_with_their_own_policy_clock_and_profiles():
    engine = Variant("memdecay", pinned=True).config()
    mux = SessionPolicies(engine)
    paper = Variant("paper", pinned=True)
    policy = mux.by_session[SessionId("t", "1", "a").key()] = paper.make_policy(paper.config())
    mine, other = (SessionState(SessionId("t", thread, "a"), "a", engine, mux) for thread in "12")
    assert (mine.policy, mine.config, mine.tokens.refresh.kind) == (policy, paper.config(), "raw_mass")
    assert mine.tokens.table.base_priority.tolist() != other.tokens.table.base_priority.tolist()
    assert (other.policy, other.config, other.tokens.refresh.kind) == (mux, engine, "relative_mass")


def test_superseded_tokens_are_flagged_once_their_successor_exists():
    trace = trace_of(superseded=[(225, 305, 400)])
    flagged = [s for s in turn_spans(trace, Turn(500, 500), supersedes=True) if s.flags & SpanFlag.SUPERSEDED]
    assert [(s.start, s.end) for s in flagged] == [(225, 305)]
    for turn, supersedes in ((Turn(400, 400), True), (Turn(500, 500), False)):
        spans = turn_spans(trace, turn, supersedes=supersedes)
        assert not any(s.flags for s in spans)
        assert spans[-1].end == turn.prompt_end


def test_what_is_superseded_goes_first():
    trace = trace_of(superseded=[(225, 305, 400)])
    recording = recording_of(trace.n_tokens)
    pages = set(range(15, 19))  # wholly inside
    with_flags = Replay().run(trace, recording, Variant("memdecay", pinned=True), 0.7)
    without = Replay().run(trace, recording, Variant("memdecay", pinned=True, supersedes=False), 0.7)
    assert not pages & set(with_flags.held_pages)
    assert pages & set(without.held_pages)


# --- outcomes ---------------------------------------------------------------------------------


def entry(page: int, computed: int) -> LedgerEntry:
    return LedgerEntry(
        session="s", agent="a", turn=0, request_id="", page=page, token_start=16 * page, token_end=16 * page + 16,
        regions={}, region="user", pinned=False, clock_ticks=0, computed_tokens=computed, score=0.0, parts={},
        order_position=0, reason=EvictionReason.over_budget,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("page", "computed", "lives"),
    [(1, 100, False), (2, 100, False), (0, 100, True), (3, 100, True), (1, 200, False), (1, 201, True)],
)
def test_a_fact_survives_if_none_of_its_pages_left_before_it_was_needed(page, computed, lives):
    assert survived(TokenFact("f", "user", 20, 40, needed_at=200), [entry(page, computed)]) is lives


def test_facts_that_were_needed_before_the_budget_was_reached_are_not_at_risk():
    facts = [TokenFact("a", "user", 0, 4, 90), TokenFact("b", "user", 0, 4, 101)]
    assert at_risk(facts, 100) == facts[1:]
    assert at_risk(facts, None) == facts


def test_unknown_policies_are_refused_and_baselines_come_with_pins_and_without():
    assert [v.pinned for v in variants_of(("recency", "memdecay", "full"))] == [False, True, True, False]
    assert {v.policy for v in variants_of()} == {"full", *BASELINES, "paper", "memdecay"}
    with pytest.raises(ConfigError, match="known are"):
        variants_of(("nonsense",))


def test_finished_pieces_are_not_done_again_and_torn_ones_are(tmp_path):
    path = tmp_path / "store.jsonl"
    outcome = FactOutcome("s", "verify", 450, 0.5, "memdecay", True, "user", "t", "f", True, True, False)
    store = OutcomeStore(path)
    assert store.get("a", lambda: [outcome]) == [outcome]
    store.get("b", lambda: [outcome])
    text = path.read_text()
    path.write_text(text[: len(text) - 40])  # a kill in the middle of the second line
    again = OutcomeStore(path)
    assert "a" in again
    assert "b" not in again
    assert again.get("a", lambda: pytest.fail("done twice")) == [outcome]
    assert again.get("b", lambda: [outcome, outcome]) == [outcome, outcome]
    assert OutcomeStore(path).get("b", lambda: pytest.fail("done twice")) == [outcome, outcome]
