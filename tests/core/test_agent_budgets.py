import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memdecay_agents import ContextFraction, FixedBudget, MemDecayConfig, PoolShare, RequestHints, Span, check_budget
from memdecay_agents.agent_budgets import Claim, as_budget, share_out
from memdecay_agents.errors import BudgetError, ConfigError, HintsError

claims = st.lists(
    st.builds(
        Claim,
        guaranteed=st.integers(0, 40),
        most=st.integers(0, 200),
        weight=st.one_of(st.just(0.0), st.floats(0.01, 100.0)),
    ),
    max_size=12,
)


@given(claims, st.integers(0, 600))
def test_a_pool_is_divided_within_guarantees_and_demands(given_claims, pool):
    shares = share_out(pool, given_claims)
    floors = [min(claim.guaranteed, claim.most) for claim in given_claims]
    for share, claim, floor in zip(shares, given_claims, floors, strict=True):
        assert floor <= share <= max(claim.most, floor)
        assert claim.weight > 0 or share == floor
    assert sum(shares) <= max(pool, sum(floors))
    wanting = [at for at, claim in enumerate(given_claims) if claim.weight > 0 and shares[at] < claim.most]
    if wanting:  # what nobody got is less than one page for each that could have used it
        assert pool - sum(shares) < len(given_claims) or pool <= sum(floors)


@given(claims, st.integers(0, 600))
def test_nobody_above_its_guarantee_has_more_by_weight_than_one_who_wants_more(given_claims, pool):
    shares = share_out(pool, given_claims)
    for at, rich in enumerate(given_claims):
        if rich.weight == 0 or shares[at] <= min(rich.guaranteed, rich.most):
            continue
        for other, poor in enumerate(given_claims):
            if poor.weight > 0 and shares[other] < poor.most:
                assert shares[at] / rich.weight <= (shares[other] + 1) / poor.weight + 1e-6


def test_shares_go_by_weight_and_what_one_cannot_use_goes_to_the_others():
    assert share_out(90, [Claim(10, 1000, 2.0), Claim(10, 1000, 1.0)]) == [60, 30]
    assert share_out(90, [Claim(10, 20, 2.0), Claim(10, 1000, 1.0)]) == [20, 70]
    assert share_out(90, [Claim(50, 1000, 1.0), Claim(10, 1000, 1.0)]) == [50, 40]
    assert share_out(20, [Claim(15, 100, 1.0), Claim(15, 100, 1.0)]) == [15, 15]


@given(st.integers(0, 10_000), st.floats(0.01, 1.0), st.integers(1, 500), st.integers(0, 5000))
def test_a_fraction_grows_with_the_context_between_floor_and_ceiling(context, fraction, floor, room):
    budget = ContextFraction(fraction=fraction, floor_tokens=floor, ceiling_tokens=floor + room)
    limit = budget.limit(context)
    assert floor <= limit <= floor + room
    assert limit <= budget.limit(context + 1)
    assert limit in (floor, floor + room, math.floor(fraction * context))
    assert budget.guarantee == floor
    assert ContextFraction(fraction=fraction, floor_tokens=floor).limit(10**9) >= limit


def test_a_share_is_its_guarantee_until_the_pool_says_more():
    share = PoolShare(weight=2.0, guaranteed_tokens=256)
    assert (share.limit(10_000), share.limit(10_000, 100), share.limit(10_000, 1000)) == (256, 256, 1000)


@pytest.mark.parametrize(
    ("value", "budget"),
    [
        (None, None),
        (512, FixedBudget(tokens=512)),
        ({"kind": "fixed", "tokens": 64, "guaranteed_tokens": 32}, FixedBudget(tokens=64, guaranteed_tokens=32)),
        ({"kind": "fraction", "fraction": 0.5, "floor_tokens": 64}, ContextFraction(fraction=0.5, floor_tokens=64)),
        ({"kind": "share", "guaranteed_tokens": 64}, PoolShare(guaranteed_tokens=64)),
        (PoolShare(guaranteed_tokens=64), PoolShare(guaranteed_tokens=64)),
    ],
)
def test_budgets_are_read_from_what_a_user_writes(value, budget):
    assert as_budget(value) == budget


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "tokens"),
        (True, "no budget"),
        ("4k", "no budget"),
        ({"kind": "half"}, "kind|tag"),
        ({"tokens": 5}, "kind|tag|discriminator"),
        ({"kind": "fixed", "tokens": 5, "weight": 1.0}, "unknown key"),
        ({"kind": "fixed", "tokens": 5, "guaranteed_tokens": 6}, "more than the budget"),
        ({"kind": "fraction", "fraction": 0.0, "floor_tokens": 1}, "fraction"),
        ({"kind": "fraction", "fraction": 1.5, "floor_tokens": 1}, "fraction"),
        ({"kind": "fraction", "fraction": 0.5, "floor_tokens": 9, "ceiling_tokens": 8}, "below the floor"),
        ({"kind": "share", "weight": 0.0, "guaranteed_tokens": 1}, "weight"),
    ],
)
def test_what_is_no_budget_is_refused_by_name(value, message):
    with pytest.raises(BudgetError, match=message):
        as_budget(value, "node 'writer'")


def test_constructors_refuse_with_the_products_error():
    with pytest.raises(BudgetError, match="PoolShare"):
        PoolShare(weight=-1.0, guaranteed_tokens=1)


def test_the_requests_budget_wins_over_the_agents_pattern_and_that_over_the_default():
    config = MemDecayConfig(
        default_budget_tokens=1000,
        agent_budgets={"team|*": {"kind": "share", "weight": 1.0, "guaranteed_tokens": 100}, "free": None, "n*": 50},
    )

    def budget(agent, **hints):
        return RequestHints(agent=agent, **hints).agent_budget(config)

    assert budget("team|writer") == PoolShare(guaranteed_tokens=100)
    assert budget("team|writer", budget_tokens=64) == FixedBudget(tokens=64)
    own = ContextFraction(fraction=0.5, floor_tokens=64)
    assert budget("team|writer", budget=own) == own
    assert budget("free") is None
    assert budget("narrow") == FixedBudget(tokens=50)
    assert budget("other") == FixedBudget(tokens=1000)
    assert MemDecayConfig.model_validate_json(config.model_dump_json()) == config


def test_budgets_travel_in_hints_as_json():
    hints = RequestHints(agent="a", budget=PoolShare(weight=3.0, guaranteed_tokens=64), spans=(Span(0, 4, "user"),))
    message = hints.to_extra_args()
    assert message["memdecay"]["budget"] == {"kind": "share", "weight": 3.0, "guaranteed_tokens": 64}
    assert RequestHints.from_extra_args(message) == hints


def test_two_budgets_or_a_broken_one_are_refused():
    with pytest.raises(HintsError, match="beside budget_tokens"):
        RequestHints(budget_tokens=5, budget=FixedBudget(tokens=5))
    with pytest.raises(HintsError, match=r"hints\.budget"):
        RequestHints.model_validate({"budget": {"kind": "share"}})
    with pytest.raises(HintsError, match="below the floor"):
        RequestHints.model_validate(
            {"budget": {"kind": "fraction", "fraction": 0.5, "floor_tokens": 9, "ceiling_tokens": 8}}
        )
    with pytest.raises(ConfigError, match=r"agent_budgets\['x'\]"):
        MemDecayConfig(agent_budgets={"x": 0})
    with pytest.raises(ConfigError, match="agent_budgets"):
        MemDecayConfig(agent_budgets=[1])


@pytest.mark.parametrize(
    ("budget", "field"),
    [
        (FixedBudget(tokens=64), "budget_tokens"),
        (ContextFraction(fraction=0.1, floor_tokens=64), "floor_tokens"),
        (PoolShare(guaranteed_tokens=64), "guaranteed_tokens"),
    ],
)
def test_a_budget_that_cannot_hold_the_pins_says_which_number_to_raise(budget, field):
    hints = RequestHints(budget=budget, spans=(Span(0, 160, "system"), Span(160, 200, "user")))
    with pytest.raises(BudgetError, match=f"Raise {field} to at least"):
        check_budget(hints, 200, 10, MemDecayConfig())
