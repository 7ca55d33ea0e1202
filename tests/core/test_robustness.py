"""What a user's policy or a long life of the engine must not break."""

from __future__ import annotations

import numpy as np
import pytest
from core_helpers import lay, view_of

from memdecay_agents import EvictionReason, Ledger, LedgerEntry, MemDecayConfig, SessionId, SessionState, get_policy
from memdecay_agents.hints import RequestHints
from memdecay_agents.policies.memdecay import MemDecayPolicy
from memdecay_agents.selection import plan_eviction
from memdecay_agents.spans import Span


class Raising(MemDecayPolicy):
    """Fails on every page."""

    name = "raising"

    def token_scores(self, view):
        raise ZeroDivisionError("nothing to divide by")

    def score_parts(self, view):
        return {"score": view.page_mean(self.token_scores(view))}


def test_a_policy_that_raises_is_reported_and_the_oldest_pages_go():
    view = view_of(lay([(32, "system", 0), (320, "tool_out", 0)]), MemDecayConfig())
    plan = plan_eviction(view, Raising(MemDecayConfig()), pages_to_free=3)
    evictable = view.page_index[view.evictable].tolist()
    assert "raising" in plan.fault
    assert "nothing to divide by" in plan.fault
    assert list(plan.pages) == evictable[:3]


def test_random_draws_go_by_the_hints_and_not_by_the_engines_ids():
    config = MemDecayConfig(policy="random", default_budget_tokens=160)
    policy = get_policy("random", config)

    def evicted(branch: str, draw_key: str | None) -> tuple[int, ...]:
        session = SessionId("t", "thread", "agent", branch)
        state = SessionState(session, "agent", config, policy, draw_key=draw_key)
        state.begin_turn(RequestHints(spans=(Span(0, 480, "tool_out"),)), 480)
        state.on_computed(480, 0)
        return state.plan(480, list(range(30))).pages

    assert evicted("~request-1", "thread/agent") == evicted("~request-2", "thread/agent")
    assert evicted("~request-1", None) != evicted("~request-2", None)


def test_a_copied_ledger_does_not_change_with_the_original():
    def entry(page: int) -> LedgerEntry:
        return LedgerEntry(
            session="s", agent="a", turn=0, request_id="r", page=page, token_start=page * 16,
            token_end=page * 16 + 16, regions={"user": 16}, region="user", pinned=False, clock_ticks=1,
            computed_tokens=99, score=0.5, parts={}, order_position=0, reason=EvictionReason.over_budget,
        )  # fmt: skip

    ledger = Ledger()
    ledger.allocated("s", range(5))
    ledger.evict(entry(1))
    twin = ledger.copy()
    ledger.evict(entry(2))
    ledger.closed("s")
    assert [found.page for found in twin.entries()] == [1]
    assert twin.held_pages("s") == frozenset({0, 2, 3, 4})
    assert twin.summary("s").evicted == 1
    twin.check_integrity({"s": [0, 2, 3, 4]})
    ledger.check_integrity({"s": []})


def test_a_default_budget_laid_over_a_configuration_keeps_the_rest():
    config = MemDecayConfig(regions={"plan": {"pinned": True}}, alpha=2.0)
    with_budget = config.with_default_budget(512)
    assert with_budget.default_budget_tokens == 512
    assert with_budget.model_copy(update={"default_budget_tokens": None}) == config
    assert "page_size_tokens" not in with_budget.model_fields_set
    with pytest.raises(Exception, match="less than one page"):
        config.with_default_budget(8)


def test_view_positions_are_numbers_of_the_session():
    view = view_of(lay([(64, "user", 0)]), MemDecayConfig())
    assert np.array_equal(view.token_index.ravel(), np.arange(64))
