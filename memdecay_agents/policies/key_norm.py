"""Small keys stay: a token whose key has a small norm tends to be looked at much later, whatever was seen so far.

Source: "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression" (arXiv 2406.11430). Unlike there: one
score for all layers and heads (the mean norm over key heads of the observed layers), and whole pages.
"""

from __future__ import annotations

from typing import ClassVar

from memdecay_agents.arrays import FloatArray
from memdecay_agents.pages import PageView
from memdecay_agents.policies.base import Policy


class KeyNormPolicy(Policy):
    """Reads nothing. Knows a token from the moment it is computed, and never learns more about it."""

    name: ClassVar[str] = "key_norm"
    uses_key_norms = True

    def token_scores(self, view: PageView) -> FloatArray:
        """Minus the norm, float32 [P, page]."""
        return -view.key_norm
