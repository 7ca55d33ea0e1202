"""The definition of right for the tests: the benchmark's own, over the engine's results."""

from __future__ import annotations

from typing import Any

import torch

from memdecay_adapters.bench.reference import MaskedReference as Oracle
from memdecay_adapters.bench.reference import logprob_distance as _distance

__all__ = ["Oracle", "logprob_distance"]


def logprob_distance(oracle_rows: torch.Tensor, prompt_tokens: int, result: Any, *, skip: int = 0) -> float:
    """Largest |difference| over a result's top log-probabilities and the oracle's; see the benchmark's."""
    logprobs = [{token: entry.logprob for token, entry in row.items()} for row in result.logprobs]
    return _distance(oracle_rows, prompt_tokens, logprobs, skip=skip)
