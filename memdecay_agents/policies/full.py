"""The whole cache: nothing is ever evicted. The ceiling of every comparison, and the way to switch off."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from memdecay_agents.arrays import FloatArray
from memdecay_agents.pages import PageView
from memdecay_agents.policies.base import Policy


class FullPolicy(Policy):
    """Reads nothing; budgets do not apply."""

    name: ClassVar[str] = "full"
    uses_attention = False
    evicts: ClassVar[bool] = False

    def token_scores(self, view: PageView) -> FloatArray:
        """1 for every token, float32 [P, page]."""
        return np.ones(view.region.shape, dtype=np.float32)
