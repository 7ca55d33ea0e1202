"""The reserve of a budget, and the recent window at the end of a question: what plans leave free and may let go."""

from __future__ import annotations

import numpy as np
from core_helpers import lay, pieces, session, state_of, view_of
from hypothesis import given
from hypothesis import strategies as st

from memdecay_agents import MemDecayConfig, RequestHints, Span, get_policy
from memdecay_agents.explaining import explain_session
from memdecay_agents.pages import build_page_view
from memdecay_agents.session_state import SessionState
from memdecay_agents.sessions import SessionId
from memdecay_agents.spans import SpanFlag

PAGE = 16


def planned(spans, budget_pages: int, reserve: int, new_pages: int = 0):
    """A session that has computed all of its tokens, its plan, and the pages that may go."""
    state = session(MemDecayConfig(page_size_tokens=PAGE), spans=spans, budget_tokens=budget_pages * PAGE)
    n = spans[-1].end
    state.on_computed(n, 1)
    state.reserve_pages = reserve
    held = range(-(-n // PAGE))
    may_go = int(state.view(n, list(held)).evictable.sum())
    return state.plan(n, list(held), new_pages), may_go


@given(pieces=pieces(max_size=6), budget=st.integers(1, 20), reserve=st.integers(1, 6), new=st.integers(0, 1))
def test_a_reserve_is_made_of_what_may_go_and_never_is_a_shortfall(pieces, budget, reserve, new):
    spans = tuple(lay(pieces))
    without, may_go = planned(spans, budget, 0, new)
    plan, _ = planned(spans, budget, reserve, new)
    wanted = plan.held_before + new - budget + reserve
    assert len(plan.pages) == min(max(wanted, 0), may_go)
    assert plan.shortfall_pages == without.shortfall_pages
    assert plan.pages[: len(without.pages)] == without.pages or plan.quota, "the same order, some pages more"
    assert plan.held_after + new <= budget + plan.shortfall_pages


def test_without_over_budget_a_reserve_still_binds():
    spans = (Span(0, 16, "system"), Span(16, 160, "tool_out"))
    assert not planned(spans, 10, 0)[0].pages
    assert len(planned(spans, 10, 3)[0].pages) == 3
    assert len(planned(spans, 12, 3)[0].pages) == 1
    assert not planned(spans, 13, 3)[0].pages


@given(
    pieces=pieces(min_size=2, flags=[SpanFlag.NONE, SpanFlag.PINNED]),
    share=st.floats(0.1, 1.0),
    beyond=st.integers(0, 100),
)
def test_the_recent_window_can_end_behind_what_is_processed(pieces, share, beyond):
    config = MemDecayConfig(page_size_tokens=PAGE)
    spans = lay(pieces)
    state = state_of(spans, config, observations=0)
    processed = int(share * state.n_tokens)
    newest = min(processed + beyond, state.n_tokens)
    held = np.arange(-(-state.n_tokens // PAGE))
    at_processed = build_page_view(state, held, processed, config)
    view = build_page_view(state, held, processed, config, newest_tokens=newest)
    ends = (held + 1) * PAGE
    assert not view.evictable[ends > processed].any(), "a page that is not complete stays"
    assert not view.evictable[ends > newest - config.recent_tokens].any()
    assert not view.evictable[view.pinned].any()
    assert not (at_processed.evictable & ~view.evictable).any(), "more may go, none fewer"
    free = (ends <= processed) & (ends <= newest - config.recent_tokens) & ~view.pinned & (held >= config.sink_pages)
    assert view.evictable[free].all()


def test_by_default_it_ends_at_what_is_processed():
    spans = [Span(0, 200, "tool_out")]
    view = view_of(spans, MemDecayConfig(page_size_tokens=PAGE))
    assert view.page_index[view.evictable].tolist() == list(range(1, 10))


def shared_plan(spans, budget_pages: int, share: float):
    """The plan of a session whose newest pages have a share, and the pages that may go."""
    state = session(MemDecayConfig(page_size_tokens=PAGE), spans=spans, budget_tokens=budget_pages * PAGE)
    n = spans[-1].end
    state.on_computed(n, 1)
    state.recent_share = share
    held = list(range(-(-n // PAGE)))
    return state, state.plan(n, held), state.view(n, held)


@given(
    pieces=pieces(max_size=6, flags=[SpanFlag.NONE, SpanFlag.SUPERSEDED]),
    budget=st.integers(1, 20),
    share=st.floats(0.0, 1.0),
)
def test_the_newest_pages_of_their_share_go_after_all_others(pieces, budget, share):
    spans = tuple(lay(pieces))
    _, plain, view = shared_plan(spans, budget, 0.0)
    _, plan, _ = shared_plan(spans, budget, share)
    assert len(plan.pages) == len(plain.pages)
    assert sorted(plan.order) == sorted(plain.order)
    stays = len(plan.order) - (plan.held_before - budget)
    superseded = set(view.page_index[view.superseded].tolist())
    newest = sorted(set(plan.order) - superseded)
    newest = newest[len(newest) - min(max(int(share * max(stays, 0)), 0), len(newest)) :]
    last = plan.order[len(plan.order) - len(newest) :]
    assert sorted(last) == newest
    for pages in (set(newest), set(plan.order) - set(newest)):
        assert [page for page in plan.order if page in pages] == [page for page in plain.order if page in pages]


def test_an_explanation_knows_the_share():
    spans = (Span(0, 16, "system"), Span(16, 400, "user"))
    state, plan, _ = shared_plan(spans, 10, 1.0)
    state.apply(plan)
    held = [page for page in range(25) if page not in plan.pages]
    told = {page.page: page.goes_after for page in explain_session(state, held).pages if page.goes_after is not None}
    assert sorted(told, key=told.__getitem__)[1:] == sorted(told)[1:], "all but the one that goes are the newest ones"
    assert held[1:] == list(range(16, 25)), "the sink, and the newest"


@given(pieces=pieces(min_size=3, max_size=6), leaving=st.integers(1, 6), share=st.floats(0.0, 1.0))
def test_who_ranks_all_pages_and_frees_the_head_names_how_many(pieces, leaving, share):
    spans = tuple(lay(pieces))
    state = session(MemDecayConfig.for_policy("key_norm", page_size_tokens=PAGE), spans=spans, budget_tokens=1000)
    n = spans[-1].end
    state.on_computed(n, 1)
    state.recent_share = share
    held = list(range(-(-n // PAGE)))
    head = state.plan(n, held, pages_to_free=leaving)
    whole = state.plan(n, held, pages_to_free=len(held), leaving_pages=leaving)
    assert whole.pages[: len(head.pages)] == head.pages
    assert whole.newest_last == head.newest_last


def test_what_stays_for_being_new_names_no_budget_and_no_score():
    spans = (Span(0, 16, "system"), Span(16, 400, "user"))
    state, plan, _ = shared_plan(spans, 10, 1.0)
    entries = state.apply(plan)
    assert plan.newest_last
    assert all(entry.keeping_pages is None and entry.lowest_kept is None for entry in entries)
    kinds = {one.kind for page in explain_session(state, []).pages for one in page.kept_by}
    assert kinds == {"pin"}


class Listed(get_policy("key_norm", MemDecayConfig()).__class__):
    """Gives its order as a list, as a user's policy may."""

    heeds_superseded = True

    def order(self, view, budget_pages, page_scores):
        return super().order(view, budget_pages, page_scores).tolist()


def test_a_policy_whose_order_is_a_list_is_explained():
    config = MemDecayConfig(page_size_tokens=PAGE)
    state = SessionState(SessionId("t", "thread", "a"), "a", config, Listed(config))
    state.begin_turn(RequestHints(spans=(Span(0, 400, "user"),), budget_tokens=160), 400)
    state.on_computed(400, 1)
    for share in (0.0, 0.5):
        state.recent_share = share
        assert sum(page.goes_after is not None for page in explain_session(state, range(25)).pages) > 10
