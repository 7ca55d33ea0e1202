"""A memory history: made of a ledger alone, written and read back, refused where it cannot be."""

from __future__ import annotations

import json

import pytest
from played_sessions import Played, entry

from memdecay_agents import EvictionReason, MemDecayConfig
from memdecay_agents.errors import ConfigError, LedgerError
from memdecay_agents.pictures import MemoryHistory, history_of_ledger
from memdecay_agents.pictures.charts import session_chart
from memdecay_agents.pictures.history import PageState, events_of, priorities_of
from memdecay_agents.pictures.loading import load_history, only_agents
from memdecay_agents.pictures.palette import UNKNOWN_REGION


def test_a_ledger_alone_knows_only_what_left():
    history = history_of_ledger(
        [entry(1, 96), entry(0, 64, session="t/th/b/"), entry(3, 128, region="plan")],
        MemDecayConfig(),
        budget_tokens=64,
    )
    first, second = history.sessions
    assert (first.session, first.computed_tokens, first.held, first.budget_tokens) == ("t/th/a/", 128, None, 64)
    assert second.computed_tokens == 64
    chart = session_chart(first)
    assert [row.region for row in chart.rows] == [UNKNOWN_REGION, "user"] + [UNKNOWN_REGION, "plan"] + [
        UNKNOWN_REGION
    ] * 4
    assert {priority.region for priority in history.priorities} >= {"system", "plan"}
    with pytest.raises(ConfigError, match=r"\[16, 32\] tokens"):
        history_of_ledger([entry(1, 96), entry(1, 96, size=32)])


def test_where_a_page_went_is_told_by_what_came_back_and_by_what_is_in_host_memory_now():
    back = {"reason": EvictionReason.swapped_in}
    moves = [
        entry(1, 64),  # came back
        entry(2, 64),  # was dropped from host memory, or never copied
        entry(3, 80),  # is there
        entry(1, 96).model_copy(update=back),
        entry(1, 128),  # went again, and is there
        entry(4, 128),  # came back and stayed
        entry(4, 140).model_copy(update=back),
    ]
    events = events_of(moves, away=(1, 3))
    host, held, gone = PageState.host, PageState.held, PageState.evicted
    assert [event.state for event in events] == [host, gone, host, held, host, host, held]
    assert [event.state for event in events_of(moves)] == [host, gone, gone, held, gone, host, held]


def test_files_are_read_back_and_told_apart(tmp_path):
    played = Played(1, 20, 8)
    history = MemoryHistory(model="m", priorities=priorities_of(MemDecayConfig()), sessions=(played.history(),))
    export, ledger = tmp_path / "export.json", tmp_path / "ledger.jsonl"
    assert load_history(history.save(export)) == history
    played.ledger.to_jsonl(ledger)
    assert load_history(ledger, budget_tokens=128) == history_of_ledger(played.ledger.entries(), budget_tokens=128)
    assert only_agents(history, ["a"]) == history
    with pytest.raises(ConfigError, match="agent 'b'"):
        only_agents(history, ["b"])
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert load_history(empty).sessions == ()


@pytest.mark.parametrize(
    ("content", "error", "told"),
    [
        (b"\xff\xfe\x00", LedgerError, "no text"),
        (b"{}\n", LedgerError, "line 1"),
        (b'{"sessions": [{"session": "s"}]}', LedgerError, r"sessions\[0\].agent"),
        (b'{"sessions": [], "extra": 1}', LedgerError, "unknown key"),
        (None, ConfigError, "cannot be read"),
    ],
)
def test_what_is_no_history_is_refused_by_place(tmp_path, content, error, told):
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=told):
        load_history(path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"computed_tokens": 2**30}, "can be drawn"),
        ({"held": ((3, 2),)}, "ascend"),
        ({"regions": ({"first": 0, "end": 4, "region": "a"}, {"first": 3, "end": 5, "region": "a"})}, "ascend"),
        ({"page_size_tokens": 0}, "greater"),
    ],
)
def test_a_history_that_cannot_be_is_refused(tmp_path, change, told):
    session = {"session": "s", "agent": "a", "page_size_tokens": 16, "computed_tokens": 64, **change}
    path = tmp_path / "export.json"
    path.write_text(json.dumps({"sessions": [session]}))
    with pytest.raises(LedgerError, match=told):
        MemoryHistory.load(path)
