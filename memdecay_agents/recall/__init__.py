"""Recall: which pages in host memory a turn asks for, and which pages on the device make room for them.

queries of the retrieval heads -> page_evidence (host pages and unpinned device pages, one estimator)
    -> with_neighbours -> plan_swap
"""

from memdecay_agents.recall.estimator import NEIGHBOUR_SHARE, EvidenceArray, page_evidence, with_neighbours
from memdecay_agents.recall.heads import RetrievalHead, RetrievalHeads, shipped_heads
from memdecay_agents.recall.model_fingerprint import model_fingerprint
from memdecay_agents.recall.swap import LEAST_SHARE, RECENT_SHARE, SwapPlan, plan_swap

__all__ = [
    "LEAST_SHARE",
    "NEIGHBOUR_SHARE",
    "RECENT_SHARE",
    "EvidenceArray",
    "RetrievalHead",
    "RetrievalHeads",
    "SwapPlan",
    "model_fingerprint",
    "page_evidence",
    "plan_swap",
    "shipped_heads",
    "with_neighbours",
]
