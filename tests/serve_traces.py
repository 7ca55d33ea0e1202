"""Traces for ``memdecay bench serve`` that are made up of numbers."""

from __future__ import annotations

import numpy as np

from memdecay_agents.evaluation.traces import TokenTrace
from memdecay_agents.spans import Span

REGIONS = ("system", "user", "scratchpad")


def trace(name: int, tokens: int) -> TokenTrace:
    """A system message, and questions of 20 tokens by turns with answers of 20."""
    edges = [0, 10, *range(30, tokens, 20), tokens]
    regions = ["system", *(REGIONS[1 + at % 2] for at in range(len(edges) - 2))]
    spans = [Span(a, b, region) for a, b, region in zip(edges, edges[1:], regions, strict=False)]
    return TokenTrace(f"trace-{name}", "made up", tokens, np.full(tokens, name, dtype=np.int64), tuple(spans))
