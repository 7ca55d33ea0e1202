"""Sinks and a window: the oldest page after the sinks goes first.

Source: StreamingLLM, "Efficient Streaming Language Models with Attention Sinks" (arXiv 2309.17453). The sinks
are the protected leading pages; the window is whatever the budget leaves. Unlike there, positions are not
renumbered: tokens keep their logical positions.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from memdecay_agents.arrays import FloatArray
from memdecay_agents.pages import PageView
from memdecay_agents.policies.base import Policy


class RecencyPolicy(Policy):
    """Reads nothing. Known to lose early instructions unless they are pinned."""

    name: ClassVar[str] = "recency"
    uses_attention = False

    def token_scores(self, view: PageView) -> FloatArray:
        """The token's place in the session, in [0, 1), float32 [P, page]."""
        return (view.token_index / np.float64(max(view.n_tokens, 1))).astype(np.float32)
