"""The policies that are compared, each with what it needs: clock, pins, refresh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ConfigError
from memdecay_agents.policies import Policy, get_policy

BASELINES = ("random", "recency", "accumulated_attention", "last_query", "key_norm")
"""Policies that know no regions; each is run with and without pins."""
EVALUATED = ("full", *BASELINES, "paper", "memdecay")
PINS = ("system",)
PAGE_SIZE_TOKENS = 16


@dataclass(frozen=True)
class Variant:
    """A policy with or without pins."""

    policy: str
    pinned: bool
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the configuration, for studies; ``name`` tells such variants apart."""
    name: str = ""
    supersedes: bool = True
    """Whether the agent says what is superseded; only policies that know regions heed it."""

    @property
    def label(self) -> str:
        """For tables and files."""
        return self.name or self.policy + ("+pin" if self.pinned and self.policy in BASELINES else "")

    @property
    def is_baseline(self) -> bool:
        """Whether it is one of ``BASELINES``."""
        return self.policy in BASELINES

    def config(self) -> MemDecayConfig:
        """The configuration in which it runs: pages of 16 tokens, pins only where the variant has them."""
        regions = {name: {"pinned": False} for name in PINS}
        given = {**self.settings, "page_size_tokens": PAGE_SIZE_TOKENS}
        given["regions"] = {**regions, **given.get("regions", {})}
        return MemDecayConfig.for_policy(self.policy, **given)

    def make_policy(self, config: MemDecayConfig) -> Policy:
        """The policy itself, for what ``config`` gave."""
        return get_policy(self.policy, config)


def variants_of(
    policies: tuple[str, ...] | None = None, settings: Mapping[str, Any] | None = None, *, supersedes: bool = True
) -> list[Variant]:
    """The variants of these policies (default: all): baselines with and without pins, the others with.

    Args:
        policies: names; None: all.
        settings: fields of the configuration of the default policy.
        supersedes: whether the agents say what is superseded.

    Raises:
        ConfigError: an unknown policy.
    """
    made = []
    for policy in policies or EVALUATED:
        if policy not in EVALUATED:
            raise ConfigError(
                where=f"policy {policy!r}",
                rule=f"it is not evaluated; known are {', '.join(EVALUATED)}",
                remedy="Use these names, separated by commas.",
            )
        if policy in BASELINES:
            made.append(Variant(policy, pinned=False, supersedes=supersedes))
        given = (settings or {}) if policy == "memdecay" else {}
        made.append(Variant(policy, pinned=policy != "full", settings=given, supersedes=supersedes))
    return made
