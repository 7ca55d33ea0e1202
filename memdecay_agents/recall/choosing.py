"""Choose retrieval heads: which few KV heads, added up, give the page that holds the answer the highest evidence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from memdecay_agents.errors import TraceError
from memdecay_agents.recall.estimator import EvidenceArray, with_neighbours

LOOKED_AT = 6
"""Heads that stand best alone; the chosen ones are among them."""
CHOSEN = (2, 3)
"""How many heads may be chosen."""


class AskedPages(NamedTuple):
    """One question: what each KV head says of each candidate page, and where the answer is."""

    evidence: EvidenceArray
    """float64 [n_heads, n_pages] of consecutive pages."""
    value_page: int
    """The page on which the value begins."""
    fact_pages: tuple[int, ...]
    """All pages of the sentence that says it."""


def rank_of(evidence: EvidenceArray, page: int) -> int:
    """Place of a page by evidence, from 1 on; pages that are equal to it come before it.

    Args:
        evidence: float64 [n_pages].
        page: index into it.
    """
    return int((evidence >= evidence[page]).sum())


def choose_heads(questions: Sequence[AskedPages]) -> tuple[int, ...]:
    """Indices of the chosen heads, the best alone first.

    The heads with the best mean reciprocal rank of the value's page are looked at; of their pairs and triples the one
    whose sum has the best mean reciprocal rank is chosen. Neighbours do not count here: they would hide differences.

    Raises:
        TraceError: no questions.
    """
    if not questions:
        raise TraceError(where="retrieval heads", rule="no questions were asked", remedy="Give more or longer traces.")
    alone = np.mean([[1.0 / rank_of(row, asked.value_page) for row in asked.evidence] for asked in questions], axis=0)
    best = np.argsort(-alone, kind="stable")[:LOOKED_AT].tolist()
    groups = [group for size in CHOSEN for group in combinations(best, min(size, len(best)))]
    return max(groups, key=lambda group: _together(questions, group))


def recall_at(questions: Sequence[AskedPages], heads: Sequence[int], ks: Sequence[int]) -> dict[int, float]:
    """Share of questions all of whose fact's pages are among the first k by these heads' evidence, by k.

    Neighbours count, as they do when pages are recalled.
    """
    worst = []
    for asked in questions:
        evidence = asked.evidence[list(heads)].sum(axis=0)
        evidence = with_neighbours(evidence, np.arange(evidence.size))
        worst.append(max(rank_of(evidence, page) for page in asked.fact_pages))
    return {k: round(sum(rank <= k for rank in worst) / len(worst), 4) for k in ks}


def _together(questions: Sequence[AskedPages], heads: Sequence[int]) -> float:
    rows = list(heads)
    return float(np.mean([1.0 / rank_of(asked.evidence[rows].sum(axis=0), asked.value_page) for asked in questions]))
