"""Pictures are drawn from a session's history: what they say of each page is what the ledger says."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memdecay_agents import EvictionReason, Ledger, LedgerEntry, MemDecayConfig
from memdecay_agents.errors import ConfigError, LedgerError
from memdecay_agents.pictures import MemoryHistory, draw_memory, history_of_ledger, write_memory_page
from memdecay_agents.pictures import charts as charts_module
from memdecay_agents.pictures.charts import session_chart, session_charts
from memdecay_agents.pictures.history import (
    PageEvent,
    PageRun,
    PageState,
    Rewind,
    SessionHistory,
    events_of,
    priorities_of,
)
from memdecay_agents.pictures.loading import load_history, only_agents
from memdecay_agents.pictures.memory_page import page_data
from memdecay_agents.pictures.palette import (
    THEMES,
    UNKNOWN_REGION,
    in_usual_order,
    region_colours,
    region_hatches,
)

SIZE = 16
REGIONS = ("system", "user", "tool_out", "notes")


def entry(page: int, at: int, *, region: str = "user", turn: int = 1, session: str = "t/th/a/", size: int = SIZE):
    return LedgerEntry(
        session=session, agent="a", turn=turn, request_id="r", page=page, token_start=page * size,
        token_end=(page + 1) * size, regions={region: size}, region=region, pinned=False, clock_ticks=at,
        computed_tokens=at, score=0.25, parts={"structure": 0.25}, order_position=0, reason=EvictionReason.over_budget,
    )  # fmt: skip


class Played:
    """A session played step by step with a real ledger: the truth that pictures are held against."""

    def __init__(self, seed: int, pages: int, budget_pages: int, rewind: bool = False) -> None:
        self.random = random.Random(seed)
        self.ledger = Ledger()
        self.regions = [self.random.choice(REGIONS) for _ in range(pages)]
        self.held_at: list[tuple[int, frozenset[int], int]] = []
        """Time, pages held then, and the page that comes next."""
        self.budget_pages = budget_pages
        self.time = self.tokens = 0
        self.turn = 1
        self.rewinds: tuple[Rewind, ...] = ()
        self._write(pages)
        if rewind:
            back_to = self.random.randrange(max(pages // 2, 1))
            n_events = len(self.ledger.entries())
            self.rewinds = (Rewind(after_events=n_events, from_tokens=self.tokens, to_tokens=back_to * SIZE),)
            self.ledger.rewound("s", back_to)
            self.held_at[-1] = (self.time, self.ledger.held_pages("s"), back_to)
            self.tokens, self.turn = back_to * SIZE, 2
            self._write(pages)

    def _write(self, pages: int) -> None:
        while self.tokens < pages * SIZE:
            self.ledger.allocated("s", [self.tokens // SIZE])
            self.tokens += SIZE
            self.time += SIZE
            surplus = len(self.ledger.held_pages("s")) - self.budget_pages
            candidates = sorted(self.ledger.held_pages("s") - {0, self.tokens // SIZE - 1})
            for page in self.random.sample(candidates, min(max(surplus, 0), len(candidates))):
                self.ledger.evict(entry(page, self.tokens, region=self.regions[page], turn=self.turn, session="s"))
            self.held_at.append((self.time, self.ledger.held_pages("s"), self.tokens // SIZE))

    def history(self, *, knows_rewinds: bool = True) -> SessionHistory:
        held = sorted(self.ledger.held_pages("s"))
        return SessionHistory(
            session="s",
            agent="a",
            page_size_tokens=SIZE,
            computed_tokens=self.tokens,
            budget_tokens=self.budget_pages * SIZE,
            regions=tuple(PageRun(first=page, end=page + 1, region=name) for page, name in enumerate(self.regions)),
            held=tuple((page, page + 1) for page in held),
            events=events_of(self.ledger.entries()),
            rewinds=self.rewinds if knows_rewinds else (),
        )


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


# ---- what is drawn


HOSTILE = "</script><script>alert(1)</script> & $\\frac{1}{$ \u2028"


def history() -> MemoryHistory:
    session = Played(2, 40, 12).history()
    hostile = session.model_copy(update={"agent": HOSTILE, "session": f"t/{HOSTILE}/a/"})
    return MemoryHistory(model=HOSTILE, priorities=priorities_of(MemDecayConfig()), sessions=(session, hostile))


def test_the_page_carries_the_charts_and_nothing_that_names_could_run(tmp_path):
    text = write_memory_page(history(), tmp_path / "page.html", title=HOSTILE).read_text()
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 2
    data = json.loads(scripts[0])
    assert data == json.loads(json.dumps(page_data(history(), HOSTILE)))
    assert data["title"] == HOSTILE
    assert "alert" not in text.replace(scripts[0], "")
    assert "<" not in scripts[0]
    assert not re.search(r"""(src|href)\s*=|@import|url\((?!#)""", text.replace(scripts[1], "")), "nothing from outside"
    assert "unsafe" not in text.split("</head>")[0]
    assert len(text) < 200_000


@pytest.mark.parametrize("theme", sorted(THEMES))
def test_the_picture_has_its_themes_ground_and_full_colour_only_where_pages_are_held(tmp_path, theme):
    from matplotlib.image import imread

    def picture(held: bool) -> np.ndarray:
        events = () if held else events_of([entry(page, 640, region="tool_out") for page in range(38)])
        session = SessionHistory(
            session="s", agent=HOSTILE, page_size_tokens=SIZE, computed_tokens=1280, events=events,
            regions=(PageRun(first=0, end=80, region="tool_out"),),
        )  # fmt: skip
        path = draw_memory(MemoryHistory(sessions=(session,)), tmp_path / "a.png", theme=theme)
        return (imread(path)[:, :, :3] * 255).round().astype(int)

    def share(image: np.ndarray, colour: str) -> float:
        wanted = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])
        return float((np.abs(image - wanted).max(-1) <= 2).mean())

    whole, less = picture(True), picture(False)
    green = region_colours(["tool_out"])["tool_out"]
    assert share(whole, green) > 1.15 * share(less, green) > 0.02
    assert share(whole, THEMES[theme].ground) > 0.3


def test_nothing_to_draw_and_unknown_themes_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no session"):
        draw_memory(MemoryHistory(), tmp_path / "a.png")
    with pytest.raises(ConfigError, match="light, dark"):
        draw_memory(history(), tmp_path / "a.png", theme="blue")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_memory_page(history(), tmp_path / "missing" / "a.html")


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", sorted(THEMES))
def test_words_can_be_read_on_their_ground(theme):
    colours = THEMES[theme]
    assert contrast(colours.ink, colours.ground) >= 7
    assert contrast(colours.faint, colours.ground) >= 4.5
    assert contrast(colours.budget, colours.ground) >= 4.5


def test_no_region_is_told_by_its_colour_alone():
    names = ["system", "plan", "user", "tool_in", "tool_out", "retrieval", "scratchpad", "notes", "legal"]
    assert len(set(region_hatches(names).values())) == len(names)
    assert in_usual_order(["notes", UNKNOWN_REGION, "user", "system"]) == ["system", "user", "notes", UNKNOWN_REGION]


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
