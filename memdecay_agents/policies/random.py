"""Random eviction: a fixed draw for each page of a session. With pins, a strong baseline.

Source: keeping the prompt and evicting the rest at random rivals informed policies in reasoning traces
(arXiv 2609.03430), so every comparison has to include it.
"""

from __future__ import annotations

import hashlib
from typing import ClassVar

import numpy as np

from memdecay_agents.arrays import FloatArray
from memdecay_agents.pages import PageView
from memdecay_agents.policies.base import Policy


class RandomPolicy(Policy):
    """Reads ``seed``. The draw depends on seed, session and page only, so it is stable from step to step."""

    name: ClassVar[str] = "random"
    uses_attention = False

    def token_scores(self, view: PageView) -> FloatArray:
        """A number in [0, 1) for each page, the same for all its tokens, float32 [P, page]."""
        digest = hashlib.blake2b(f"{self.config.seed}/{view.session_key}".encode(), digest_size=8).digest()
        x = view.page_index.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(int.from_bytes(digest, "big"))
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)  # splitmix64's finaliser
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
        draw = ((x >> np.uint64(40)).astype(np.float64) / 2.0**24).astype(np.float32)
        return np.repeat(draw[:, None], view.page_size_tokens, axis=1)
