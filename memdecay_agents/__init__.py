"""memdecay-agents: what of an agent's KV cache is kept, and why.

The core, without any engine. The way the data flows:

    spans of regions -> hints -> token state <- attention observations
                                    |
                        page view -> policy -> eviction plan -> ledger

Importing this package loads numpy and pydantic, no model runtime and no agent framework.
"""

from memdecay_agents.agent_budgets import AgentBudget, ContextFraction, FixedBudget, PoolShare
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import MemDecayError
from memdecay_agents.explaining import explain_session
from memdecay_agents.explanation import Explanation, PageExplanation, SessionExplanation
from memdecay_agents.hints import RequestHints
from memdecay_agents.ledger import EvictionReason, Ledger, LedgerEntry, LedgerSummary
from memdecay_agents.observations import Observation, RefreshRule
from memdecay_agents.pages import PageView, build_page_view
from memdecay_agents.policies import Policy, get_policy, policy_names, register_policy
from memdecay_agents.regions import DEFAULT_PROFILES, PAPER_PROFILES, REGIONS, RegionProfile
from memdecay_agents.selection import EvictionPlan, check_budget, minimum_budget_pages, plan_eviction
from memdecay_agents.session_state import SessionState
from memdecay_agents.sessions import SessionId
from memdecay_agents.spans import Span, SpanFlag
from memdecay_agents.token_state import TokenState

__all__ = [
    "DEFAULT_PROFILES",
    "PAPER_PROFILES",
    "REGIONS",
    "AgentBudget",
    "ContextFraction",
    "EvictionPlan",
    "EvictionReason",
    "Explanation",
    "FixedBudget",
    "Ledger",
    "LedgerEntry",
    "LedgerSummary",
    "MemDecayConfig",
    "MemDecayError",
    "Observation",
    "PageExplanation",
    "PageView",
    "Policy",
    "PoolShare",
    "RefreshRule",
    "RegionProfile",
    "RequestHints",
    "SessionExplanation",
    "SessionId",
    "SessionState",
    "Span",
    "SpanFlag",
    "TokenState",
    "build_page_view",
    "check_budget",
    "explain_session",
    "get_policy",
    "minimum_budget_pages",
    "plan_eviction",
    "policy_names",
    "register_policy",
]
