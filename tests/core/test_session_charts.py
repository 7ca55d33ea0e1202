"""A session's chart says of each page and each moment what the ledger says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from played_sessions import REGIONS, SIZE, Played, entry

from memdecay_agents.pictures import charts as charts_module
from memdecay_agents.pictures.charts import session_chart, session_charts
from memdecay_agents.pictures.history import PageEvent, PageState, SessionHistory, events_of
from memdecay_agents.pictures.palette import UNKNOWN_REGION


def held_in(chart, at: int) -> set[int]:
    if at == chart.end_at:
        return {row.first_page for row in chart.rows if row.at_end[0]}
    return {row.first_page for row in chart.rows for start, end, held, _, _ in row.steps if held and start <= at < end}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(3, 20), st.booleans())
def test_at_every_moment_the_map_holds_the_pages_that_the_ledger_holds(seed, pages, budget, rewind):
    played = Played(seed, pages, budget, rewind)
    chart = session_chart(played.history())
    assert (chart.pages_per_row, chart.time_grid) == (1, 1)
    assert chart.rewinds == ([pages * SIZE] if rewind else [])
    assert chart.end_at == played.time
    for at, held, next_page in played.held_at:
        fresh = {next_page} if at < chart.end_at else set()  # the next page begins at this very token
        assert held_in(chart, at) == held | fresh
        index = max(i for i, known in enumerate(chart.memory.at) if known <= at)
        assert sum(column[index] for column in chart.memory.held.values()) == len(held | fresh) * SIZE
    final = played.held_at[-1][1]
    by_region = {name: SIZE * sum(played.regions[page] == name for page in final) for name in REGIONS}
    assert chart.held_at_end == {name: tokens for name, tokens in by_region.items() if tokens}
    assert chart.evicted_by_region == played.ledger.summary().evicted_by_region
    assert chart.events_by_reason == {k: v for k, v in played.ledger.summary().evicted_by_reason.items() if v}
    gone_back = sum(rewind.from_tokens - rewind.to_tokens for rewind in played.rewinds)
    assert [(mark.at, mark.row, mark.region, mark.reason, mark.score) for mark in chart.marks] == [
        (entry.computed_tokens + (entry.turn - 1) * gone_back, entry.page, entry.region, "over_budget", 0.25)
        for entry in played.ledger.entries()
    ]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(8, 60), st.integers(3, 6))
def test_after_a_rewind_the_end_is_still_the_truth_and_no_event_is_lost(seed, pages, budget):
    played = Played(seed, pages, budget, rewind=True)
    chart = session_chart(played.history(knows_rewinds=False))
    final = played.held_at[-1][1]
    assert held_in(chart, chart.end_at) == final
    assert sum(chart.evicted_by_region.values()) == len(played.ledger.entries())
    times = [mark.at for mark in chart.marks]
    assert times == sorted(times), "time goes on, though the count of tokens went back"
    assert pages * SIZE <= chart.end_at


def test_a_rewind_shows_where_the_count_falls_or_a_page_leaves_again():
    events = events_of([entry(1, 96), entry(2, 112), entry(1, 64, turn=2), entry(1, 128, turn=3)])
    base = {"session": "s", "agent": "a", "page_size_tokens": SIZE, "computed_tokens": 128}
    chart = session_chart(SessionHistory(**base, events=events))
    # 112 -> back to page 1 (16) -> 64; then page 1 leaves again: back to 16 once more -> 128
    assert chart.rewinds == [112, 160]
    assert [mark.at for mark in chart.marks] == [96, 112, 160, 272]


@pytest.mark.parametrize("rewind", [False, True])
def test_long_sessions_are_drawn_in_bounded_size_with_exact_totals(monkeypatch, rewind):
    monkeypatch.setattr(charts_module, "MOST_ROWS", 32)
    monkeypatch.setattr(charts_module, "MOST_STEPS", 300)
    monkeypatch.setattr(charts_module, "MOST_MARKS", 200)
    monkeypatch.setattr(charts_module, "MOST_POINTS", 60)
    played = Played(3, 1500, 200, rewind)
    chart = session_chart(played.history())
    assert len(chart.rows) <= 32
    assert sum(len(row.steps) for row in chart.rows) <= 300
    assert len(chart.marks) <= 200
    assert len(chart.memory.at) <= 60
    assert chart.time_grid > 1
    assert sum(mark.pages for mark in chart.marks) == len(played.ledger.entries())
    assert sum(chart.held_at_end.values()) == len(played.held_at[-1][1]) * SIZE
    assert max(sum(values) for values in zip(*chart.memory.held.values(), strict=True)) == chart.peak_tokens
    assert sum(row.at_end[0] for row in chart.rows) == len(played.held_at[-1][1])
    assert all(row.at_end[0] + row.at_end[1] == row.end_page - row.first_page for row in chart.rows)


def test_a_page_on_the_host_is_a_third_state_and_can_come_back():
    about = {"region": "user", "regions": {"user": SIZE}, "turn": 1}
    events = (
        PageEvent(page=1, at_tokens=64, reason="swapped_out", **about),
        PageEvent(page=1, at_tokens=96, reason="swapped_in", **about),
        PageEvent(page=2, at_tokens=96, reason="over_budget", **about),
    )
    assert [event.state for event in events] == [PageState.host, PageState.held, PageState.evicted]
    chart = session_chart(
        SessionHistory(session="s", agent="a", page_size_tokens=SIZE, computed_tokens=128, events=events)
    )
    assert chart.rows[1].steps == [(16, 64, 1, 0, 0), (64, 96, 0, 0, 1), (96, 128, 1, 0, 0)]
    assert chart.rows[2].steps == [(32, 96, 1, 0, 0), (96, 128, 0, 1, 0)]
    assert chart.memory.host[chart.memory.at.index(64)] == SIZE
    assert chart.evicted_by_region == {"user": 2}
    assert chart.rewinds == []


def test_pages_that_left_before_the_ledgers_oldest_entry_are_not_held():
    chart = session_chart(
        SessionHistory(session="s", agent="a", page_size_tokens=SIZE, computed_tokens=64, held=((0, 1), (3, 4)))
    )
    assert held_in(chart, 64) == {0, 3}
    assert chart.held_at_end == {UNKNOWN_REGION: 2 * SIZE}


def test_sessions_of_one_agent_have_names_that_tell_them_apart():
    sessions = [
        SessionHistory(
            session=f"acme/{thread}/{agent}/", agent=agent, page_size_tokens=SIZE, computed_tokens=64, events=()
        )
        for thread, agent in (("t1", "planner"), ("t1", "worker"), ("t2", "planner"))
    ]
    names = [chart.name for chart in session_charts(sessions)]
    assert names == ["planner (t1/planner/)", "worker", "planner (t2/planner/)"]
    assert session_chart(sessions[0]).name == "planner"
