"""A policy of your own: say what a token is worth, check it, use it.

Run: python examples/own_policy.py
"""

from typing import ClassVar

import numpy as np

from memdecay_agents import MemDecayConfig, Policy, register_policy
from memdecay_agents.pages import PageView
from memdecay_agents.testing import check_policy


class NewestQuestionFirst(Policy):
    """Keeps what the newest query looks at, and of the rest what is young."""

    name: ClassVar[str] = "newest_question_first"

    def token_scores(self, view: PageView) -> np.ndarray:
        """Mass of the newest query plus a little for youth, float32 [P, page]."""
        youth = 1.0 / (1.0 + view.age_ticks)
        return (view.last_query_mass + 1e-4 * youth).astype(np.float32)


def main() -> None:
    """Check the policy against the contract and make a configuration that uses it."""
    check_policy(NewestQuestionFirst)
    register_policy("newest_question_first", NewestQuestionFirst)
    config = MemDecayConfig(policy="newest_question_first", default_budget_tokens=2048)
    print(f"policy {config.policy} passes; give the config to ChatMemDecay(config=...) or MemDecayEngine(config=...)")


if __name__ == "__main__":
    main()
