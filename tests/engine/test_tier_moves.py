"""Whatever moves between device and tier, and in whatever order blocks are reused: each page holds its own bytes."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memdecay_adapters.engine.events import DROPPED_HOST_PAGES
from memdecay_adapters.engine.tier.settings import HostTier, Recall
from memdecay_agents import RequestHints
from memdecay_agents.recall import RetrievalHead
from memdecay_agents.recall.wishes import RecallWish
from memdecay_agents.spans import Span
from tests.engine.tier_model import TierModel

HEADS = (RetrievalHead(0, 0),)
AGENTS = 3


class Conversations:
    """Three agents of two tenants over one model; each thing that happens is drawn from a seed."""

    def __init__(self, seed: int, host_pages: int, rerun: int | str, system_tokens: int = 16, **recalling) -> None:
        recall = Recall(heads=HEADS, max_pages=3, rerun=rerun, **recalling)
        self.system_tokens = system_tokens
        self.model = TierModel(
            44, HostTier(max_bytes=host_pages, max_bytes_per_agent=host_pages * 2 // 3, recall=recall)
        )
        self.draw = random.Random(seed)
        self.histories: dict[int, list[int]] = {}
        self.names = 0
        self.running: dict[int, str] = {}

    def act(self) -> None:
        agent, draw, model = self.draw.randrange(AGENTS), self.draw, self.model
        name = self.running.get(agent)
        if name is not None and name not in model.requests:  # it ended
            del self.running[agent]
            name = None
        if name is None:
            self.begin(agent)
        elif draw.random() < 0.02:
            model.end(name)
        elif draw.random() < 0.03:
            model.preempt(name)
        elif not model.step(name, draw.randrange(1000), draw.choice((64, 64, 63, 30))):
            self.make_room(agent)
        for agent_, running in list(self.running.items()):
            if running in model.requests:
                self.histories[agent_] = list(model.requests[running].all_token_ids)

    def begin(self, agent: int) -> None:
        draw, history = self.draw, self.histories.get(agent, [])
        if len(history) > 400 or (history and draw.random() < 0.1):
            history = history[: draw.randrange(1, len(history))]  # an edited history
        tokens = [*history, *(draw.randrange(3, 900) for _ in range(draw.randrange(1, 150)))]
        system = min(self.system_tokens, len(tokens) - 1)
        cut = draw.randrange(system + 1, len(tokens)) if len(tokens) > system + 1 else len(tokens)
        spans = [span for span in (Span(0, system, "system"), Span(system, cut, "tool_out"),
                                   Span(cut, len(tokens), "user")) if span.start < span.end]  # fmt: skip
        wish = RecallWish(regions=("tool_out",)) if draw.random() < 0.3 else None
        self.names += 1
        self.running[agent] = name = f"r{self.names}"
        self.histories[agent] = tokens
        self.model.submit(
            name, tokens, draw.randrange(1, 20),
            RequestHints(tenant=f"t{agent % 2}", session=f"thread-{agent}", agent="a", spans=tuple(spans),
                         budget_tokens=draw.choice((128, 160, 192)), recall=wish,
                         needs_next=RecallWish(tokens=((0, 64),)) if draw.random() < 0.2 else None),
        )  # fmt: skip

    def make_room(self, agent: int) -> None:
        model = self.model
        idle = model.controller.sessions.oldest()
        if idle is not None:
            model.controller.release([idle])
        elif len(model.rows) > 1:
            model.preempt(next(name for name in model.rows if name != self.running[agent]))


@given(
    seed=st.integers(0, 10**6),
    host_pages=st.sampled_from([3, 12, 200]),
    rerun=st.sampled_from(["turn", 8, 40]),
    reserve=st.sampled_from([0, 0, 2, 5]),
    every=st.sampled_from([None, None, 1, 6]),
)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_page_holds_its_own_bytes_and_budgets_hold(seed, host_pages, rerun, reserve, every):
    conversations = Conversations(seed, host_pages, rerun, reserve_pages=reserve, every_tokens=every)
    for _ in range(150):
        conversations.act()
    model = conversations.model
    keys = {session.state.key for session in model.controller.sessions} | {
        state.key for _, _, state in model.controller.running()
    }
    assert {page.session for page in model.book.catalogue} <= keys, "pages of a session that is gone"


def test_the_model_does_what_it_is_meant_to_try():
    conversations = Conversations(7, 30, "turn")
    for _ in range(2500):
        conversations.act()
    model = conversations.model
    assert min(model.reruns, model.reused) > 20
    assert model.restored > 100
    assert model.controller.events.total(DROPPED_HOST_PAGES) > 20
    for name in list(model.requests):
        model.end(name)
    model.controller.close_sessions()
    assert len(model.book.catalogue) == 0
    assert len(model.free) == model.pool_pages


def test_nothing_comes_back_while_a_page_on_the_device_knows_much_better():
    conversations = Conversations(7, 200, "turn", system_tokens=64, neighbour_share=0.0, least_share=1.0)
    for _ in range(1200):
        conversations.act()
    seen = [
        (came, max(evidence[:away]) >= max(evidence))  # pinned pages among the others
        for away, evidence, came in conversations.model.decisions
    ]
    assert all(better for came, better in seen if came)
    assert sum(came for came, _ in seen) > 10
    assert sum(not better for _, better in seen) > 10


def test_a_reserve_takes_pages_for_which_none_leaves():
    conversations = Conversations(7, 200, "turn", reserve_pages=4)
    for _ in range(1200):
        conversations.act()
    model = conversations.model
    assert model.reruns > 20
    assert model.grown > 10
    for session in model.controller.sessions:
        state = session.state
        may_go = state.view(len(session.token_ids), session.held_pages).evictable
        assert len(session.held_pages) <= (state.budget_pages or 0) - 4 or not may_go.any()


def test_without_a_reserve_no_row_grows_by_a_swap():
    conversations = Conversations(7, 200, "turn")
    for _ in range(1200):
        conversations.act()
    assert conversations.model.reruns > 20
    assert not conversations.model.grown
