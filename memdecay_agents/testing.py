"""The conformance suite of a policy, for the shipped ones and for a user's own.

    from memdecay_agents.testing import check_policy
    check_policy(MyPolicy)

It plays sessions (prefill in chunks, decoding, attention, evictions) that hypothesis makes up and shrinks, on the
product's own planner and ledger, and checks the contract of ``memdecay_agents.policies.base`` at every plan.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import numpy as np

from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import PolicyError, UnsupportedError
from memdecay_agents.hints import RequestHints
from memdecay_agents.ledger import LedgerEntry
from memdecay_agents.observations import Observation
from memdecay_agents.pages import TOKEN_ARRAYS, PageView
from memdecay_agents.policies.base import Policy
from memdecay_agents.selection import EvictionPlan, plan_eviction
from memdecay_agents.session_state import SessionState
from memdecay_agents.sessions import SessionId
from memdecay_agents.spans import Span, SpanFlag

_REMEDY = "See the contract in memdecay_agents.policies.base."


@dataclass(frozen=True)
class Scenario:
    """One made-up session."""

    spans: tuple[Span, ...]
    pins: tuple[str, ...]
    output_region: str
    budget_pages: int
    chunk_tokens: int
    decode_tokens: int
    seed: int


def check_policy(
    policy_or_factory: Policy | Callable[[MemDecayConfig], Policy],
    *,
    max_examples: int = 50,
    config: MemDecayConfig | None = None,
    shrink: bool = True,
) -> None:
    """Check that a policy keeps its contract; returns nothing if it does.

    Pins and protected pages survive; the budget holds, or a refusal says why it cannot; evicted pages rank no
    higher than kept evictable ones in the plan's own order; the same input gives the same plan, whatever the
    policy was asked before; scores are finite, their parts add up, and the view is left alone; the ledger
    balances. The examples are the same at each call.

    Args:
        policy_or_factory: a policy, its class, or a function from a configuration to a policy.
        max_examples: sessions to play.
        config: for a class or function; by default ``MemDecayConfig()``.
        shrink: look for the smallest session that fails; without, a failure is reported sooner.

    Raises:
        PolicyError: the contract is broken; the message names the rule, the notes the smallest session found.
        UnsupportedError: hypothesis is not installed.
    """
    try:
        from hypothesis import HealthCheck, Phase, given, settings
        from hypothesis.errors import Flaky
    except ImportError:
        raise UnsupportedError(
            where="memdecay_agents.testing.check_policy",
            rule="it needs hypothesis, which is not installed",
            remedy="Install it: pip install hypothesis.",
        ) from None

    make: Callable[[], Policy]
    if isinstance(policy_or_factory, Policy):
        instance = policy_or_factory
        config = instance.config
        make = lambda: instance  # noqa: E731
    else:
        factory, config = policy_or_factory, config or MemDecayConfig()
        make = lambda: factory(config)  # noqa: E731

    @settings(
        max_examples=max_examples,
        deadline=None,
        database=None,
        derandomize=True,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(_scenarios(config))
    def play_twice(scenario: Scenario) -> None:
        policy = make()
        first = _play(scenario, policy, make)
        if _play(scenario, make(), make) != first:
            raise _broken(policy, "the same session, played twice, gave two ledgers")

    try:
        play_twice()
    except Flaky as error:
        rule = "the same session, played again, broke the contract otherwise or not at all"
        raise _broken(make(), f"{rule}: the policy depends on more than the view") from error


def _scenarios(config: MemDecayConfig):  # type: ignore[no-untyped-def]  # hypothesis stays optional
    from hypothesis import strategies as st

    region = st.sampled_from(config.region_names)
    flags = st.sampled_from([SpanFlag.NONE, SpanFlag.NONE, SpanFlag.PINNED, SpanFlag.SUPERSEDED])
    page = config.page_size_tokens

    def lay(pieces: list[tuple[int, str, SpanFlag]]) -> tuple[Span, ...]:
        ends = np.cumsum([length for length, _, _ in pieces]).tolist()
        return tuple(
            Span(end - length, end, name, flag) for (length, name, flag), end in zip(pieces, ends, strict=True)
        )

    return st.builds(
        Scenario,
        spans=st.lists(st.tuples(st.integers(1, 4 * page), region, flags), min_size=1, max_size=7).map(lay),
        pins=st.lists(region, max_size=2, unique=True).map(tuple),
        output_region=region,
        budget_pages=st.integers(1, 16),
        chunk_tokens=st.integers(page, 5 * page),
        decode_tokens=st.integers(0, page + 4),
        seed=st.integers(0, 2**16),
    )


def _play(scenario: Scenario, policy: Policy, make: Callable[[], Policy]) -> list[LedgerEntry]:
    """Play one session as an engine would, checking each plan; returns the ledger."""
    config, page = policy.config, policy.config.page_size_tokens
    n_prompt = scenario.spans[-1].end
    state = SessionState(SessionId("tenant", "thread", "agent"), "agent", config, policy)
    hints = RequestHints(
        agent="agent",
        budget_tokens=scenario.budget_pages * page,
        pins=scenario.pins,
        spans=scenario.spans,
        output_region=scenario.output_region,
    )
    state.begin_turn(hints, n_prompt)
    rng = np.random.default_rng(scenario.seed)
    held: list[int] = []
    computed, total = 0, n_prompt + scenario.decode_tokens
    token_ids = np.random.default_rng(scenario.seed).integers(0, 200, total).tolist()
    while computed < total:
        n_new = min(scenario.chunk_tokens, n_prompt - computed) if computed < n_prompt else 1
        new = list(range(-(-computed // page), -(-(computed + n_new) // page)))
        view = state.view(computed, held)
        if held:
            _check_view(view, policy, make, scenario.budget_pages, len(new))
        plan = state.plan(computed, held, len(new))
        _check_plan(view, policy, plan)
        state.apply(plan)
        held = sorted(set(held) - set(plan.pages)) + new
        state.note_held(held)
        state.on_computed(n_new, int(computed + n_new >= n_prompt))
        state.learn(token_ids)
        computed += n_new
        retained = (np.asarray(held)[:, None] * page + np.arange(page)).ravel()
        retained = retained[retained < computed]
        mass = rng.random(retained.size) ** rng.integers(1, 12)
        state.observe(Observation(retained, mass / max(mass.sum(), 1e-9), n_new, n_new == 1))
    state.ledger.check_integrity({state.key: held})
    state.close()
    state.ledger.check_integrity({})
    return state.ledger.entries()


def _check_view(view: PageView, policy: Policy, make: Callable[[], Policy], budget_pages: int, n_new: int) -> None:
    """Ask everything that a policy answers about one view."""
    for name in TOKEN_ARRAYS:  # gathered on first use: do it now, so that a change of one is seen
        getattr(view, name)
    before = deepcopy(view)
    tokens = np.asarray(policy.token_scores(view))
    if tokens.shape != view.region.shape or not np.isfinite(tokens).all():
        raise _broken(policy, f"token_scores must be finite and of shape {view.region.shape}, is {tokens.shape}")
    scores, parts = np.asarray(policy.page_scores(view)), policy.score_parts(view)
    total = np.sum(list(parts.values()), axis=0)
    if scores.shape != (view.n_pages,) or not np.allclose(total, scores, rtol=1e-4, atol=1e-4):
        raise _broken(policy, "the score parts do not add up to the page scores")
    plan = plan_eviction(view, policy, budget_pages=budget_pages, new_pages=n_new)
    _check_plan(view, policy, plan)
    again = plan_eviction(view, policy, budget_pages=budget_pages, new_pages=n_new)
    fresh = plan_eviction(view, make(), budget_pages=budget_pages, new_pages=n_new)
    if again != plan or fresh != plan:
        raise _broken(policy, "the same view gave two different plans")
    if plan.order:
        row = np.searchsorted(view.page_index, plan.order)
        keep = max(0, min(view.n_pages, budget_pages - n_new))
        order = policy.order(view, keep, np.asarray(total, dtype=np.float32))
        if not np.array_equal(order, view.page_index[row]):
            raise _broken(policy, "order() disagrees with the order that the pages were evicted in")
    if plan.shortfall_pages and plan_eviction(
        view, policy, budget_pages=budget_pages, new_pages=n_new, allow_partial=False
    ):
        raise _broken(policy, "pages were freed although the plan could not be met in full")
    if not _same(before, view):
        raise _broken(policy, "the policy changed the view")


def _check_plan(view: PageView, policy: Policy, plan: EvictionPlan) -> None:
    if plan.fault is not None:
        raise _broken(policy, plan.fault)
    rank = {page: position for position, page in enumerate(plan.order)}
    evicted, evictable = set(plan.pages), set(view.page_index[view.evictable].tolist())
    if not evicted <= evictable:
        raise _broken(policy, f"pinned or protected pages were evicted: {sorted(evicted - evictable)}")
    if plan.pages and max(rank[page] for page in evicted) >= min(
        (rank[page] for page in evictable - evicted), default=len(rank)
    ):
        raise _broken(policy, "an evicted page ranks above a kept evictable one")
    over = 0 if plan.budget_pages is None else plan.held_after + plan.new_pages - plan.budget_pages
    if over > 0 and (plan.refusal is None or plan.shortfall_pages < over or (policy.evicts and evictable - evicted)):
        raise _broken(policy, f"the plan is {over} pages over budget without a reason")


def _same(one: PageView, other: PageView) -> bool:
    names = [name for name, value in vars(one).items() if isinstance(value, np.ndarray)]
    columns = zip(one.columns, other.columns, strict=True)
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names) and all(
        np.array_equal(was, now) for was, now in columns
    )


def _broken(policy: Policy, rule: str) -> PolicyError:
    name = getattr(policy, "name", type(policy).__name__)
    return PolicyError(where=f"policy '{name}'", rule=rule, remedy=_REMEDY)
