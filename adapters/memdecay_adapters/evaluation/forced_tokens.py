"""Teacher forcing inside vLLM's own decode loop: a request samples exactly the tokens that it was given.

vLLM's hook for custom logits processors (``LogitsProcessor``, v1, as of 0.32) is used, by name in ``engine_args``.
"""

from __future__ import annotations

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

FORCED_KEY = "memdecay_forced_tokens"
"""In ``SamplingParams.extra_args``: the token ids that the request samples."""


class ForcedTokens(AdapterLogitsProcessor):
    """Leaves requests without ``FORCED_KEY`` alone."""

    def is_argmax_invariant(self) -> bool:
        """No: it decides the token."""
        return False

    def new_req_logits_processor(self, params: SamplingParams):  # type: ignore[no-untyped-def]  # vLLM's signature
        """A function that forces the next token of one request; None where nothing is forced."""
        forced = (params.extra_args or {}).get(FORCED_KEY)
        if not forced:
            return None

        def force(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            if len(output_ids) < len(forced):
                token = forced[len(output_ids)]
                logits.fill_(float("-inf"))
                logits[token] = 0.0
            return logits

        return force


PATH = f"{ForcedTokens.__module__}:{ForcedTokens.__qualname__}"
"""For ``engine_args["logits_processors"]``."""

__all__ = ["FORCED_KEY", "PATH", "ForcedTokens"]
