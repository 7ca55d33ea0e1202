"""What the operations of `Chaos` can be given: the ranges of their numbers, and how a seeded run draws from them."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from memdecay_agents import ContextFraction, FixedBudget, PoolShare
from tests.engine.chaos_engine import POOL_PAGES

if TYPE_CHECKING:
    from tests.engine.chaos import Chaos

BUDGETS = (
    None,
    FixedBudget(tokens=128),
    FixedBudget(tokens=144),
    FixedBudget(tokens=192),
    FixedBudget(tokens=288),
    FixedBudget(tokens=320, guaranteed_tokens=144),
    PoolShare(weight=2.0, guaranteed_tokens=128),
    PoolShare(weight=1.0, guaranteed_tokens=176),
    ContextFraction(fraction=0.5, floor_tokens=128, ceiling_tokens=256),
)
"""One more number stands for a request without hints."""

_PROMPT = {"text": (0, 9999), "new_tokens": (1, 24), "then_steps": (0, 8)}
RANGES: dict[str, dict[str, tuple[int, int]]] = {
    "add": {
        "tenant": (0, 1), "thread": (0, 2), "agent": (0, 1), "budget": (0, len(BUDGETS)),
        "length": (1, 380), **_PROMPT,
    },
    "append": {"which": (0, 99), "length": (1, 160), **_PROMPT},
    "rewind": {"which": (0, 99), "keep_percent": (0, 100), "length": (1, 160), **_PROMPT},
    "fork": {"which": (0, 99), "length": (1, 160), **_PROMPT},
    "share": {
        "which": (0, 99), "keep_percent": (1, 100), "tenant": (0, 1), "thread": (0, 2), "length": (1, 160), **_PROMPT,
    },
    "abort": {"which": (0, 99)},
    "preempt": {},
    "shrink_pool": {"pages": (1, POOL_PAGES)},
    "grow_pool": {},
    "close_sessions": {"thread": (0, 3), "tenant": (0, 2)},
    "recall": {"which": (0, 99), "region": (0, 5), "first_percent": (0, 99)},
    "repair": {"which": (0, 99), "last_tokens": (1, 300), "then_steps": (0, 8)},
    "steps": {"most": (1, 16)},
    "finish_all": {},
}  # fmt: skip
"""The numbers of each operation, name to (least, most), and how many steps the engine then takes."""
FREQUENCY: dict[str, int] = {
    "steps": 24, "append": 10, "add": 6, "rewind": 4, "fork": 2, "share": 6, "abort": 2,
    "preempt": 2, "shrink_pool": 2, "grow_pool": 1, "close_sessions": 1, "finish_all": 1,
    "recall": 3, "repair": 3,
}  # fmt: skip
"""How often a seeded run does each operation, among those that are enabled."""


def draw(chaos: Chaos, random: Random) -> tuple[str, dict[str, int]]:
    """The next operation of a seeded run, with its numbers."""
    enabled = [name for name in FREQUENCY if chaos.enabled(name)]
    (name,) = random.choices(enabled, [FREQUENCY[name] for name in enabled])
    return name, {key: random.randint(least, most) for key, (least, most) in RANGES[name].items()}
