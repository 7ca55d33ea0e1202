"""How much of the cache an agent may hold: a fixed number, a part of its context, or a share of the pool.

    FixedBudget(tokens=4096)                        the same always
    ContextFraction(fraction=0.25, floor_tokens=512, ceiling_tokens=8192)
                                                    grows with the session, between two bounds
    PoolShare(weight=2.0, guaranteed_tokens=1024)   what the pool gives, by weight, never less than guaranteed

Each has a *limit*, which eviction keeps it to, and a *guarantee*, which the engine reserves while the session runs
and never takes back under pressure. The sum of guarantees stays within the pool; what lies above a guarantee is
lent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, TypeAdapter, ValidationError
from pydantic import model_validator as _model_validator

from memdecay_agents._validation import first_problem
from memdecay_agents.errors import BudgetError

MAX_TOKENS = 2**31 - 1

_Tokens = Annotated[int, Field(gt=0, le=MAX_TOKENS)]
_REMEDY = (
    "A budget is a number of tokens above 0, FixedBudget(tokens=...), ContextFraction(fraction=..., "
    "floor_tokens=...) or PoolShare(weight=..., guaranteed_tokens=...)."
)


class _Budget(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @_model_validator(mode="wrap")
    @classmethod
    def _own_errors(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as error:
            path, problem = first_problem(error)
            where = f"{cls.__name__}.{path}" if path else cls.__name__
            raise BudgetError(where=where, rule=problem, remedy=_REMEDY) from None


class FixedBudget(_Budget):
    """The same number of tokens always.

    Raises:
        BudgetError: a number below 1, or a guarantee above the budget.
    """

    kind: Literal["fixed"] = "fixed"

    tokens: _Tokens
    """Tokens that the session may hold."""

    guaranteed_tokens: _Tokens | None = None
    """Never taken under pool pressure; None: all of them."""

    @_model_validator(mode="after")
    def _guarantee_fits(self) -> Self:
        if self.guaranteed_tokens is not None and self.guaranteed_tokens > self.tokens:
            raise BudgetError(
                where="FixedBudget.guaranteed_tokens",
                rule=f"{self.guaranteed_tokens} guaranteed tokens are more than the budget of {self.tokens}",
                remedy="Lower the guarantee or raise the budget.",
            )
        return self

    def limit(self, context_tokens: int, share_tokens: int | None = None) -> int:
        """Tokens that may be held now."""
        return self.tokens

    @property
    def guarantee(self) -> int:
        """Tokens that are never taken back."""
        return self.tokens if self.guaranteed_tokens is None else self.guaranteed_tokens


class ContextFraction(_Budget):
    """A part of the session's own tokens, between a floor and a ceiling.

    Raises:
        BudgetError: a fraction outside (0, 1], or a ceiling below the floor.
    """

    kind: Literal["fraction"] = "fraction"

    fraction: float = Field(gt=0.0, le=1.0)
    """Part of the session's tokens (prompt and generated) that may be held."""

    floor_tokens: _Tokens
    """At least so many; also what is guaranteed."""

    ceiling_tokens: _Tokens | None = None
    """At most so many; None: no ceiling."""

    @_model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.ceiling_tokens is not None and self.ceiling_tokens < self.floor_tokens:
            raise BudgetError(
                where="ContextFraction.ceiling_tokens",
                rule=f"a ceiling of {self.ceiling_tokens} tokens is below the floor of {self.floor_tokens}",
                remedy="Raise the ceiling or lower the floor.",
            )
        return self

    def limit(self, context_tokens: int, share_tokens: int | None = None) -> int:
        """Tokens that may be held by a session of ``context_tokens``."""
        limit = max(int(self.fraction * context_tokens), self.floor_tokens)
        return limit if self.ceiling_tokens is None else min(limit, self.ceiling_tokens)

    @property
    def guarantee(self) -> int:
        """Tokens that are never taken back."""
        return self.floor_tokens


class PoolShare(_Budget):
    """A share of the pool by weight, with a guaranteed minimum.

    Raises:
        BudgetError: a weight or a guarantee that is not above 0.
    """

    kind: Literal["share"] = "share"

    weight: float = Field(default=1.0, gt=0.0, le=1e6)
    """Relative to the other running shares."""

    guaranteed_tokens: _Tokens
    """At least so many, however many agents there are."""

    def limit(self, context_tokens: int, share_tokens: int | None = None) -> int:
        """Tokens that may be held when the pool gives ``share_tokens``; the guarantee where it says nothing yet."""
        return max(share_tokens or 0, self.guaranteed_tokens)

    @property
    def guarantee(self) -> int:
        """Tokens that are never taken back."""
        return self.guaranteed_tokens


AgentBudget: TypeAlias = Annotated[FixedBudget | ContextFraction | PoolShare, Field(discriminator="kind")]
"""One of the three."""

_ADAPTER: TypeAdapter[FixedBudget | ContextFraction | PoolShare] = TypeAdapter(AgentBudget)


def as_budget(value: Any, where: str = "budget") -> FixedBudget | ContextFraction | PoolShare | None:
    """Read a budget: None (no budget), a number of tokens, a mapping with ``kind``, or a budget.

    Raises:
        BudgetError: it is none of these, or its numbers do not hold.
    """
    if value is None or isinstance(value, (FixedBudget, ContextFraction, PoolShare)):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"kind": "fixed", "tokens": value}
    if not isinstance(value, Mapping):
        raise BudgetError(where=where, rule=f"{value!r:.80} is no budget", remedy=_REMEDY)
    try:
        return _ADAPTER.validate_python(dict(value))
    except BudgetError as error:
        raise BudgetError(where=f"{where} ({error.where})", rule=error.rule, remedy=error.remedy) from None
    except ValidationError as error:
        path, problem = first_problem(error)
        raise BudgetError(where=f"{where}.{path}" if path else where, rule=problem, remedy=_REMEDY) from None


class Claim(NamedTuple):
    """One running session's claim on the pool, in pages."""

    guaranteed: int
    """At least so many."""
    most: int
    """It cannot use more."""
    weight: float
    """Its part of what is left; 0.0: its guarantee and nothing more."""


def share_out(pool_pages: int, claims: Sequence[Claim]) -> list[int]:
    """Divide a pool: to each its guarantee, the rest by weight, and what one cannot use to the others.

    Weighted max-min fairness by filling up: page levels rise in proportion to the weights, beginning at the
    guarantees, until a claim has all it can use or the pool is spent. Whole pages, rounded down.

    Args:
        pool_pages: pages to divide. Where they are fewer than the guarantees, each gets its guarantee:
            admission keeps that from happening.
        claims: the running sessions'.
    """
    shares = [float(min(claim.guaranteed, claim.most)) for claim in claims]
    rest = pool_pages - sum(shares)
    open_claims = {at for at, claim in enumerate(claims) if claim.weight > 0 and shares[at] < claim.most}
    while rest > 0 and open_claims:
        # the level (pages per weight) at which the pool is spent, were nobody's share above it already nor full
        level = _level(rest, [(shares[at], claims[at].weight) for at in sorted(open_claims)])
        full = {at for at in open_claims if claims[at].weight * level >= claims[at].most}
        for at in full or open_claims:
            target = min(float(claims[at].most), max(shares[at], claims[at].weight * level))
            rest -= target - shares[at]
            shares[at] = target
        if not full:
            break
        open_claims -= full
    return [int(share + 1e-9) for share in shares]


def _level(rest: float, open_claims: Sequence[tuple[float, float]]) -> float:
    """The level L with sum(max(0, w * L - share)) == rest."""
    by_start = sorted(open_claims, key=lambda claim: claim[0] / claim[1])
    weights = spent = level = 0.0
    for at, (share, weight) in enumerate(by_start):
        weights += weight
        spent += share
        level = (rest + spent) / weights
        if at + 1 == len(by_start) or level <= by_start[at + 1][0] / by_start[at + 1][1]:
            break
    return level
