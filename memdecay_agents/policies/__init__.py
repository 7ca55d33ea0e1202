"""Eviction policies. ``memdecay`` is the default, ``paper`` the published method, the others are baselines.

Each works with pins and without (``MemDecayConfig.policy_pins``).
"""

from memdecay_agents.policies.base import Policy
from memdecay_agents.policies.registry import get_policy, policy_names, register_policy

__all__ = ["Policy", "get_policy", "policy_names", "register_policy"]
