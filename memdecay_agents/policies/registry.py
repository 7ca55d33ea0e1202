"""Policies by name: the shipped ones, and those that a program registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import PolicyError
from memdecay_agents.policies.accumulated_attention import AccumulatedAttentionPolicy
from memdecay_agents.policies.base import Policy
from memdecay_agents.policies.full import FullPolicy
from memdecay_agents.policies.key_norm import KeyNormPolicy
from memdecay_agents.policies.last_query import LastQueryPolicy
from memdecay_agents.policies.memdecay import MemDecayPolicy
from memdecay_agents.policies.paper import PaperPolicy
from memdecay_agents.policies.random import RandomPolicy
from memdecay_agents.policies.recency import RecencyPolicy

PolicyFactory: TypeAlias = Callable[[MemDecayConfig], Policy]
"""Usually the policy class itself."""

_SHIPPED: tuple[type[Policy], ...] = (
    MemDecayPolicy,
    PaperPolicy,
    RandomPolicy,
    RecencyPolicy,
    AccumulatedAttentionPolicy,
    LastQueryPolicy,
    KeyNormPolicy,
    FullPolicy,
)
_factories: dict[str, PolicyFactory] = {policy.name: policy for policy in _SHIPPED}


def policy_names() -> tuple[str, ...]:
    """Every known name, the default first."""
    return tuple(_factories)


def register_policy(name: str, factory: PolicyFactory) -> None:
    """Make a policy selectable by ``MemDecayConfig(policy=name)`` in this process.

    Raises:
        PolicyError: the name is taken by another policy.
    """
    if _factories.get(name, factory) is not factory:
        raise PolicyError(
            where=f"policy '{name}'",
            rule="the name is taken by another policy",
            remedy="Choose another name.",
        )
    _factories[name] = factory


def get_policy(name: str, config: MemDecayConfig) -> Policy:
    """A new policy with this configuration.

    Raises:
        PolicyError: unknown name; the message lists the known ones.
    """
    factory = _factories.get(name)
    if factory is None:
        raise PolicyError(
            where=f"policy {name!r}",
            rule=f"unknown policy; known are {', '.join(_factories)}",
            remedy="Use one of them, or register yours with memdecay_agents.policies.register_policy.",
        )
    return factory(config)
