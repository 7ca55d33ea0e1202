"""What a shell completes behind an option."""

from __future__ import annotations


def complete_policy(incomplete: str) -> list[str]:
    """Names of policies."""
    from memdecay_agents.policies import policy_names

    return [name for name in policy_names() if name.startswith(incomplete)]
