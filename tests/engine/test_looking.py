"""A running engine shows what it holds and does: snapshots, apart by tenant; histories; the live page."""

from __future__ import annotations

import json
import random

import httpx
import pytest
from vllm import SamplingParams

from memdecay_agents import RequestHints
from memdecay_agents.live import EngineSnapshot
from memdecay_agents.pictures.charts import session_chart
from tests.engine.watching import watching

pytestmark = pytest.mark.engine


def ask(engine, *, thread="t", agent="clerk", tenant="default", tokens=400, budget=128, seed=1, generate=8):
    ids = random.Random(seed).choices(range(3, 1000), k=tokens)
    spans = [[0, 16, "system", 0], [16, 300, "retrieval", 0], [300, tokens, "user", 0]]
    hints = RequestHints(session=thread, agent=agent, tenant=tenant, budget_tokens=budget, spans=spans)
    return engine.generate(ids, SamplingParams(temperature=0, max_tokens=generate, ignore_eos=True), hints)


@pytest.fixture
def engine(engine_named):
    return engine_named("pressure")


def agent_of(snapshot: EngineSnapshot, name: str):
    return next((agent for agent in snapshot.agents if agent.agent == name), None)


def test_a_snapshot_says_what_the_summaries_the_pool_and_the_ledger_say(engine):
    before, ledger_before = engine.snapshot(), engine.ledger().summary()
    first = ask(engine, thread="one").retention
    second = ask(engine, thread="two", seed=2, budget=192).retention
    after = EngineSnapshot.model_validate_json(engine.snapshot().model_dump_json())
    assert (after.scope, after.policy, after.model) == ("engine", "memdecay", engine.model_name)
    mine = {session.session: session for session in after.sessions}
    for thread, kept in (("one", first), ("two", second)):
        session = mine[thread]
        assert (session.agent, session.state, session.turn) == ("clerk", "idle", kept.turn)
        assert (session.pages_held, session.pages_held_by_region) == (kept.pages_held, kept.pages_held_by_region)
        assert (session.budget_pages, session.evicted_pages) == (kept.budget_pages, kept.evictions)
    agent = agent_of(after, "clerk")
    assert (agent.running_sessions, agent.idle_sessions) == (0, 2)
    assert agent.pages_held == first.pages_held + second.pages_held
    assert agent.budget_pages == first.budget_pages + second.budget_pages == 20
    assert agent.budget_use == agent.pages_held / 20
    stats = engine.pool_stats()
    assert (after.pool.total_pages, after.pool.held_pages) == (stats.total_pages, stats.held_pages)
    assert after.pool.free_pages == stats.free_pages
    ledger = engine.ledger().summary()
    assert after.evictions.pages - before.evictions.pages == ledger.evicted - ledger_before.evicted > 0
    for region in ledger.evicted_by_region:
        more = ledger.evicted_by_region[region] - ledger_before.evicted_by_region.get(region, 0)
        assert after.evictions.by_region[region] - before.evictions.by_region.get(region, 0) == more
    # of each request: all of the prompt, and all but the last generated token
    assert after.flow.computed_tokens - before.flow.computed_tokens == 2 * (400 + 7)
    assert after.flow.generated_tokens - before.flow.generated_tokens == 2 * 8


def test_a_tenant_sees_nothing_of_another(engine):
    alice = ask(engine, thread="hers", agent="alices agent", tenant="alice").retention
    bob = ask(engine, thread="his", agent="bobs agent", tenant="bob", seed=2).retention
    seen = engine.snapshot(tenant="alice")
    text = seen.model_dump_json()
    assert "bob" not in text
    assert "his" not in {session.session for session in seen.sessions}
    assert [(agent.agent, agent.pages_held) for agent in seen.agents] == [("alices agent", alice.pages_held)]
    assert seen.evictions.pages == agent_of(engine.snapshot(), "alices agent").evictions.pages
    assert seen.pool.held_pages == alice.pages_held
    assert (seen.pool.free_pages, seen.pool.guaranteed_pages, seen.pool.waiting_requests) == (None, None, None)
    assert agent_of(engine.snapshot(), "bobs agent").pages_held == bob.pages_held
    nobody = engine.snapshot(tenant="nobody")
    assert (nobody.agents, nobody.sessions, nobody.flow.computed_tokens, nobody.evictions.pages) == ((), (), 0, 0)
    assert {session.agent for session in engine.history(tenant="bob").sessions} == {"bobs agent"}


def test_a_snapshot_of_a_running_request_is_taken_between_steps(engine):
    seen: list[EngineSnapshot] = []
    with watching(engine, before_step=lambda llm: seen.append(engine.snapshot())):
        ask(engine, thread="running", generate=4)
    running = [snapshot.sessions[0] for snapshot in seen if snapshot.sessions]
    assert {session.state for session in running} == {"running"}
    assert [session.tokens for session in running] == sorted(session.tokens for session in running)
    assert max(session.pages_held for session in running) >= 8


def test_plain_requests_count_for_the_engine_and_for_nobody(engine):
    before = engine.snapshot()
    engine.generate([5, 6, 7, 8] * 30, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
    after = engine.snapshot()
    assert after.flow.computed_tokens - before.flow.computed_tokens == 120 + 2
    assert after.flow.generated_tokens - before.flow.generated_tokens == 3


def test_the_history_is_the_ledgers_and_the_summarys(engine, tmp_path):
    turns = [ask(engine, thread="long", tokens=tokens).retention for tokens in (400, 480, 640)]
    history = engine.history()
    assert type(history).load(history.save(tmp_path / "export.json")) == history
    (session,) = (one for one in history.sessions if one.session == turns[-1].session)
    entries = engine.ledger().entries(turns[-1].session)
    assert [(event.page, event.at_tokens) for event in session.events] == [(e.page, e.computed_tokens) for e in entries]
    chart = session_chart(session)
    held = {row.first_page for row in chart.rows if row.at_end[0]}
    assert held == {page for page in range(turns[-1].pages_total) if turns[-1].holds_page(page)}
    regions = [row.region for row in chart.rows]
    assert regions == [region for first, end, region, _ in turns[-1].page_runs for _ in range(first, end)]
    assert chart.budget_tokens == 128
    assert chart.peak_tokens <= 128 + 64 + 16, "the budget, one chunk and the page being written"
    assert {priority.region for priority in history.priorities} == set(engine.config.region_names)
    engine.close_sessions()
    closed = next(one for one in engine.history().sessions if one.session == turns[-1].session)
    assert closed.held is None
    assert closed.events == session.events


def test_a_history_knows_where_the_session_went_back(engine):
    first = ask(engine, thread="edited", tokens=400).retention
    ids = [*random.Random(1).choices(range(3, 1000), k=400)[:330], *range(3, 153)]
    spans = [[0, 16, "system", 0], [16, 300, "retrieval", 0], [300, 480, "user", 0]]
    hints = RequestHints(session="edited", agent="clerk", budget_tokens=128, spans=spans)
    again = engine.generate(ids, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True), hints).retention
    assert (again.session, again.continued_tokens) == (first.session, 330 - 330 % 16)
    session = next(one for one in engine.history().sessions if one.session == again.session)
    (rewind,) = session.rewinds
    assert (rewind.from_tokens, rewind.to_tokens) == (407, again.continued_tokens)
    assert rewind.after_events == first.evictions
    chart = session_chart(session)
    assert chart.rewinds == [407]
    assert chart.end_at == 407 + (487 - again.continued_tokens)
    assert {row.first_page for row in chart.rows if row.at_end[0]} == {
        page for page in range(again.pages_total) if again.holds_page(page)
    }


def test_the_live_page_shows_the_engine_and_does_not_keep_it(engine):
    kept = ask(engine, thread="watched").retention
    with engine.watch() as page:
        assert page.url.startswith("http://127.0.0.1:")
        seen = json.loads(httpx.get(f"{page.url}snapshot.json").text)
        (session,) = seen["sessions"]
        assert (session["session"], session["pages_held"]) == ("watched", kept.pages_held)
    with pytest.raises(httpx.ConnectError):
        httpx.get(page.url)


def test_closing_the_engine_closes_its_pages(engine):
    page = engine.watch()
    engine.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(page.url)
