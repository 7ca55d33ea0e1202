import itertools
import random
import sys

import numpy as np
import pytest

from memdecay_agents import MemDecayConfig, Policy, get_policy, policy_names
from memdecay_agents.errors import PolicyError, UnsupportedError
from memdecay_agents.policies.memdecay import MemDecayPolicy
from memdecay_agents.policies.recency import RecencyPolicy
from memdecay_agents.testing import check_policy


@pytest.mark.parametrize("pins", [True, False])
@pytest.mark.parametrize("name", policy_names())
def test_every_shipped_policy_conforms_with_and_without_pins(name, pins):
    config = MemDecayConfig.for_policy(name, policy_pins=pins)
    check_policy(get_policy(name, config), max_examples=12)


def test_a_class_a_function_and_another_configuration_will_do():
    check_policy(MemDecayPolicy, max_examples=8, config=MemDecayConfig(page_size_tokens=32, clock_unit="turns"))
    check_policy(lambda config: RecencyPolicy(config), max_examples=8)


class LongestFirst(Policy):
    """A user's own: keeps early tokens."""

    name = "longest_first"

    def token_scores(self, view):
        return -view.token_index.astype(np.float32)


def test_a_users_own_policy_conforms():
    check_policy(LongestFirst, max_examples=12)


class EvictsPinned(LongestFirst):
    def order(self, view, budget_pages, page_scores):
        return view.page_index


class LeavesPagesOut(LongestFirst):
    def order(self, view, budget_pages, page_scores):
        return super().order(view, budget_pages, page_scores)[:-1]


class NamesPagesTwice(LongestFirst):
    def order(self, view, budget_pages, page_scores):
        order = super().order(view, budget_pages, page_scores)
        return np.concatenate([order[:1], order[:-1]]) if order.size else order


class ChangesItsMind(LongestFirst):
    """The first order is as planned, every later one is another."""

    def __init__(self, config):
        super().__init__(config)
        self.calls = itertools.count()

    def order(self, view, budget_pages, page_scores):
        order = super().order(view, budget_pages, page_scores)
        return order[::-1] if next(self.calls) % 2 else order


class DisagreesWhenAskedAlone(LongestFirst):
    """Every planned order is the same, the one that the suite asks for itself is not."""

    def order(self, view, budget_pages, page_scores):
        order = super().order(view, budget_pages, page_scores)
        caller = sys._getframe(1).f_code.co_name
        return order[::-1] if caller == "_check_view" else order


class DrawsAnew(LongestFirst):
    rng = np.random.default_rng(0)

    def token_scores(self, view):
        return self.rng.random(view.region.shape).astype(np.float32)

    def score_parts(self, view):
        return {"score": self.page_scores(view)}


class NewOrderEachCall(LongestFirst):
    rng = np.random.default_rng(0)

    def order(self, view, budget_pages, page_scores):
        return self.rng.permutation(view.page_index[view.evictable])


class RemembersWhatItSaw(LongestFirst):
    """Depends on how often it was asked: a fresh one plans otherwise."""

    def __init__(self, config):
        super().__init__(config)
        self.asked = 0

    def order(self, view, budget_pages, page_scores):
        self.asked += 1
        order = super().order(view, budget_pages, page_scores)
        return np.roll(order, 1) if self.asked > 3 else order


class ChangesTheView(LongestFirst):
    def token_scores(self, view):
        view.ewma_mass[:] += 1.0
        return super().token_scores(view)


class NotFinite(LongestFirst):
    def token_scores(self, view):
        return np.full(view.region.shape, np.inf, dtype=np.float32)


class WrongShape(LongestFirst):
    def token_scores(self, view):
        return np.zeros(view.n_pages, dtype=np.float32)

    def page_scores(self, view):
        return np.zeros(view.n_pages, dtype=np.float32)


class PartsDoNotAddUp(LongestFirst):
    def score_parts(self, view):
        return {"score": self.page_scores(view) + 1.0}


class NotFiniteParts(LongestFirst):
    def page_scores(self, view):
        return np.full(view.n_pages, np.nan, dtype=np.float32)


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (EvictsPinned, "no permutation of the evictable pages"),
        (LeavesPagesOut, "no permutation of the evictable pages"),
        (NamesPagesTwice, "no permutation of the evictable pages"),
        (ChangesItsMind, "two different plans"),
        (DisagreesWhenAskedAlone, "disagrees with the order"),
        (DrawsAnew, "do not add up|two different plans|more than the view"),
        (NewOrderEachCall, "two different plans|disagrees|more than the view"),
        (RemembersWhatItSaw, "two different plans|disagrees|two ledgers"),
        (ChangesTheView, "changed the view"),
        (NotFinite, "finite"),
        (WrongShape, "of shape"),
        (PartsDoNotAddUp, "do not add up"),
        (NotFiniteParts, "do not add up"),
    ],
)
def test_a_policy_that_breaks_the_contract_is_caught(policy, rule):
    with pytest.raises(PolicyError, match=rule):
        check_policy(policy, max_examples=40, shrink=False)


def test_a_plan_that_frees_the_wrong_pages_is_caught(monkeypatch):
    """The suite does not take the planner's word: planted faults in plans are seen."""
    from dataclasses import replace

    import memdecay_agents.testing as suite

    genuine = suite.plan_eviction

    def planted(change):
        def plan(*args, **kwargs):
            made = genuine(*args, **kwargs)
            return change(made) if made.pages and len(made.order) > len(made.pages) else made

        return plan

    faults = {
        "pinned or protected": lambda p: replace(p, pages=(0, *p.pages[1:])),
        "ranks above a kept": lambda p: replace(p, pages=(*p.pages[:-1], p.order[-1])),
        "over budget without a reason": lambda p: replace(p, pages=p.pages[:-1], held_after=p.held_after + 1),
    }
    for rule, change in faults.items():
        monkeypatch.setattr(suite, "plan_eviction", planted(change))
        with pytest.raises(PolicyError, match=rule):
            check_policy(LongestFirst, max_examples=40, shrink=False)


def test_freeing_part_of_what_was_all_or_nothing_is_caught(monkeypatch):
    import memdecay_agents.testing as suite

    genuine = suite.plan_eviction
    monkeypatch.setattr(suite, "plan_eviction", lambda *a, **k: genuine(*a, **{**k, "allow_partial": True}))
    with pytest.raises(PolicyError, match="could not be met in full"):
        check_policy(LongestFirst, max_examples=60, shrink=False)


class DiffersFromSessionToSession(LongestFirst):
    """Every question of the suite is answered alike; what a session then does depends on the instance."""

    coin = random.Random(0)

    def __init__(self, config):
        super().__init__(config)
        self.flips = self.coin.random() < 0.5

    def order(self, view, budget_pages, page_scores):
        order = super().order(view, budget_pages, page_scores)
        in_session = sys._getframe(4).f_code.co_name == "plan"  # order < rank < _checked_order < plan_eviction
        return order[::-1] if self.flips and in_session else order


def test_a_policy_whose_sessions_differ_is_caught():
    with pytest.raises(PolicyError, match=r"two ledgers|more than the view"):
        check_policy(DiffersFromSessionToSession, max_examples=40, shrink=False)


def test_the_smallest_failing_session_is_reported():
    with pytest.raises(PolicyError, match="do not add up") as caught:
        check_policy(PartsDoNotAddUp, max_examples=20)
    assert any("Scenario(" in note for note in caught.value.__notes__)


def test_without_hypothesis_the_suite_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(UnsupportedError, match=r"pip install hypothesis\."):
        check_policy(LongestFirst)
