import numpy as np
import pytest
from core_helpers import lay, pieces, view_of
from hypothesis import given
from hypothesis import strategies as st

from memdecay_agents import (
    REGIONS,
    MemDecayConfig,
    RequestHints,
    Span,
    SpanFlag,
    build_page_view,
    check_budget,
    get_policy,
    minimum_budget_pages,
    plan_eviction,
    policy_names,
)
from memdecay_agents.errors import BudgetError
from memdecay_agents.policies.memdecay import MemDecayPolicy
from memdecay_agents.policies.random import RandomPolicy
from memdecay_agents.token_state import TokenState

CONFIG = MemDecayConfig()
PAGE = 16


def must_stay(spans, pins, config, n_prompt, n_output, output_region, processed):
    """Pages that cannot go once ``processed`` tokens are computed, with the page about to be written."""
    state = TokenState(config)
    state.extend(n_prompt, spans=spans)
    state.extend(n_output, region=output_region)
    state.set_pins(pins)
    total = n_prompt + n_output
    held = np.arange(min(processed, total - 1) // PAGE + 1)
    view = build_page_view(state, held, processed, config)
    return view.n_pages - int(view.evictable.sum())


@given(
    pieces(max_size=5),
    st.sets(st.sampled_from(REGIONS), max_size=2),
    st.integers(1, 80),
    st.sampled_from(REGIONS),
    st.sampled_from([0, 7, 16, 31, 32, 33, 48]),
    st.integers(1, 3),
    st.booleans(),
)
def test_the_minimum_budget_is_the_most_that_ever_has_to_stay(made, pins, n_output, region, recent, sinks, heeds):
    config = MemDecayConfig(recent_tokens=recent, sink_pages=sinks, policy_pins=heeds)
    spans = lay(made)
    n = spans[-1].end
    most = max(must_stay(spans, pins, config, n, n_output, region, k) for k in range(n + n_output + 1))
    assert minimum_budget_pages(spans, pins, config, n_output, output_region=region) == most


def test_an_empty_request_needs_one_page():
    assert minimum_budget_pages([], [], CONFIG, 0) == 1


@given(pieces(), st.sets(st.sampled_from(REGIONS), max_size=2), st.integers(1, 100), st.integers(1, 60))
def test_a_budget_is_refused_exactly_below_the_minimum_and_the_remedy_works(made, pins, n_output, budget_pages):
    spans = lay(made)
    n = spans[-1].end
    needed = minimum_budget_pages(spans, pins, CONFIG, n_output)

    def hints(tokens):
        return RequestHints(agent="a", budget_tokens=tokens, pins=sorted(pins), spans=spans)

    if budget_pages >= needed:
        assert check_budget(hints(budget_pages * PAGE), n, n_output, CONFIG) == needed
    else:
        with pytest.raises(BudgetError, match=f"Raise budget_tokens to at least {needed * PAGE}"):
            check_budget(hints(budget_pages * PAGE), n, n_output, CONFIG)
        assert check_budget(hints(needed * PAGE), n, n_output, CONFIG) == needed


def test_pinned_pages_above_the_budget_say_how_many_and_what_to_unpin():
    spans = [Span(0, 160, "system"), Span(160, 656, "plan"), Span(656, 700, "user")]
    hints = RequestHints(agent="researcher", turn=2, budget_tokens=512, pins=["plan"], spans=spans)
    with pytest.raises(BudgetError) as caught:
        check_budget(hints, 700, 100, CONFIG)
    assert str(caught.value) == (
        "agent 'researcher', turn 2: 41 pinned pages exceed the budget of 32 pages. "
        "Raise budget_tokens to at least 704 or unpin 'plan'. [budget]"
    )


def test_a_budget_below_the_protected_minimum_says_what_must_stay():
    hints = RequestHints(agent="a", budget_tokens=40, spans=[Span(0, 300, "user")])
    with pytest.raises(BudgetError, match=r"budget of 2 pages is below the 4 that must stay.*at least 64\. \[budget\]"):
        check_budget(hints, 300, 20, CONFIG)


def test_generated_tokens_of_a_pinned_region_count():
    spans = [Span(0, 64, "user")]
    hints = RequestHints(agent="a", budget_tokens=256, pins=["plan"], output_region="plan", spans=spans)
    assert check_budget(hints, 64, 100, CONFIG) <= 16
    with pytest.raises(BudgetError, match=r"up to 1000 generated tokens of the pinned region 'plan'.*unpin 'plan'"):
        check_budget(hints, 64, 1000, CONFIG)
    assert check_budget(hints, 64, 1000, MemDecayConfig(policy_pins=False)) == 4


def test_pages_pinned_in_earlier_turns_count():
    hints = RequestHints(agent="a", turn=1, base=640, budget_tokens=320, spans=[Span(640, 700, "user")])
    assert check_budget(hints, 700, 10, CONFIG, pinned_pages_before=range(10)) == 13
    with pytest.raises(BudgetError, match="30 pinned pages exceed the budget of 20"):
        check_budget(hints, 700, 10, CONFIG, pinned_pages_before=range(30))


def test_no_budget_or_a_policy_that_never_evicts_is_never_refused():
    spans = [Span(0, 6400, "system")]
    assert check_budget(RequestHints(spans=spans), 6400, 10, CONFIG) > 400
    full = MemDecayConfig(policy="full", default_budget_tokens=64)
    assert check_budget(RequestHints(spans=spans), 6400, 10, full) > 400
    with pytest.raises(BudgetError):
        check_budget(RequestHints(spans=spans), 6400, 10, MemDecayConfig(default_budget_tokens=64))


# --- plans ------------------------------------------------------------------------------------


@given(
    pieces(max_length=100),
    st.sampled_from([name for name in policy_names() if name != "full"]),
    st.booleans(),
    st.integers(0, 30),
    st.integers(0, 4),
    st.booleans(),
)
def test_a_plan_meets_the_budget_or_says_why_it_cannot(made, name, heeds_pins, budget, new, partial):
    config = MemDecayConfig.for_policy(name, policy_pins=heeds_pins)
    view, policy = view_of(lay(made), config), get_policy(name, config)
    plan = plan_eviction(view, policy, budget_pages=budget, new_pages=new, allow_partial=partial)
    evictable = set(view.page_index[view.evictable].tolist())
    assert set(plan.pages) <= evictable
    assert plan.pages == plan.order[: len(plan.pages)]
    assert (plan.held_before, plan.held_after) == (view.n_pages, view.n_pages - len(plan.pages))
    assert plan.fault is None
    wanted = max(0, view.n_pages + new - budget)
    assert bool(plan) == bool(plan.pages)
    if wanted:
        assert set(plan.order) == set(plan.scores) == evictable
        assert set(plan.parts) == set(plan.pages)
        for page in plan.pages:
            assert sum(plan.parts[page].values()) == pytest.approx(plan.scores[page], rel=1e-4, abs=1e-5)
    if plan.shortfall_pages:
        assert plan.shortfall_pages == wanted - len(evictable)
        assert len(plan.pages) == (len(evictable) if partial else 0)
        assert f"{wanted} pages have to go and {len(evictable)} may" in plan.refusal
        assert f"{int(view.pinned.sum())} are pinned" in plan.refusal
    else:
        assert len(plan.pages) == wanted
        assert plan.refusal is None
    assert plan == plan_eviction(view, policy, budget_pages=budget, new_pages=new, allow_partial=partial)


def test_nothing_is_planned_without_a_budget_or_a_need():
    view, policy = view_of([Span(0, 400, "user")], CONFIG), get_policy("memdecay", CONFIG)
    assert not plan_eviction(view, policy).pages
    assert not plan_eviction(view, policy, budget_pages=25).pages
    assert not plan_eviction(view, policy, pages_to_free=0).pages


def test_full_never_evicts_and_says_so():
    view = view_of([Span(0, 400, "user")], CONFIG)
    plan = plan_eviction(view, get_policy("full", CONFIG), budget_pages=10)
    assert (plan.pages, plan.shortfall_pages) == ((), 15)
    assert "never evicts" in plan.refusal


class WrongOrder(RandomPolicy):
    name = "wrong_order"

    def order(self, view, budget_pages, page_scores):
        return view.page_index  # pinned and protected ones too


class NotANumber(MemDecayPolicy):
    name = "not_a_number"

    def score_parts(self, view):
        return {"score": np.full(view.n_pages, np.nan, dtype=np.float32)}


@pytest.mark.parametrize("policy", [WrongOrder(CONFIG), NotANumber(CONFIG)])
def test_a_policy_that_breaks_its_contract_is_named_and_pins_still_hold(policy):
    view = view_of([Span(0, 100, "system"), Span(100, 400, "user", SpanFlag.NONE)], CONFIG)
    plan = plan_eviction(view, policy, pages_to_free=5)
    assert policy.name in plan.fault
    assert len(plan.pages) == 5
    assert set(plan.pages) <= set(view.page_index[view.evictable].tolist())
