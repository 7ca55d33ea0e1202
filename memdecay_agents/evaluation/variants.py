"""The policies that are compared, each with what it needs: clock, pins, refresh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from memdecay_agents.arrays import FloatArray
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ConfigError
from memdecay_agents.pages import PageView
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
        name = "recency" if self.policy == "key_norm" else self.policy
        return MemDecayConfig.for_policy(name, **given)

    def make_policy(self, config: MemDecayConfig, key_norms: FloatArray) -> Policy:
        """The policy itself.

        Args:
            config: what ``config`` gave.
            key_norms: float32 [n] of the trace that it is for.
        """
        if self.policy == "key_norm":
            return KeyNormPolicy(config, key_norms)
        return get_policy(self.policy, config)


class KeyNormPolicy(Policy):
    """Tokens with small keys stay.

    Source: "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression" (arXiv 2406.11430). Unlike
    there: one score for all layers and heads, whole pages. The engine measures no norms, so they come from the
    full-cache recording: a baseline for evaluation only.
    """

    name: ClassVar[str] = "key_norm"
    uses_attention = False

    def __init__(self, config: MemDecayConfig, key_norms: FloatArray) -> None:
        super().__init__(config)
        self.key_norms = key_norms

    def token_scores(self, view: PageView) -> FloatArray:
        """Minus the norm, float32 [P, page]; 0 for tokens that were not recorded."""
        known = view.token_index < self.key_norms.shape[0]
        index = np.minimum(view.token_index, self.key_norms.shape[0] - 1)
        return np.where(known, -self.key_norms[index], np.float32(0.0)).astype(np.float32)


def variants_of(policies: tuple[str, ...] | None = None) -> list[Variant]:
    """The variants of these policies (default: all): baselines with and without pins, the others with.

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
            made.append(Variant(policy, pinned=False))
        made.append(Variant(policy, pinned=policy != "full"))
    return made
