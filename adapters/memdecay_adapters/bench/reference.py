"""The definition of right: transformers in float32 with evicted tokens masked from the moment they left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from transformers import AutoModelForCausalLM

from memdecay_agents.ledger import LedgerEntry


class MaskedReference:
    """A float32 model whose attention mask is given token by token.

    Args:
        model_path: a local folder or a Hugging Face id.
    """

    def __init__(self, model_path: str) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            model_path, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    def logprobs(self, token_ids: Sequence[int], evictions: Iterable[LedgerEntry] = ()) -> torch.Tensor:
        """Log-probabilities after each token, float32 ``[n, vocab]``.

        An evicted page is hidden from every query at or after ``computed_tokens`` of its entry: the first
        token that was computed without it.
        """
        return self.logprobs_seeing(token_ids, self.hidden(len(token_ids), evictions))

    def logprobs_seeing(self, token_ids: Sequence[int], hidden: torch.Tensor) -> torch.Tensor:
        """The same under any mask: bool ``[n, n]``, True where the query of a row may not see the key of a column."""
        ids, mask = torch.tensor([list(token_ids)]), self.mask(hidden)
        with torch.no_grad():
            logits = self.model(ids, attention_mask=mask, use_cache=False).logits[0]
        return torch.log_softmax(logits.float(), -1)

    def attention_mass(self, token_ids: Sequence[int], queries: int) -> torch.Tensor:
        """Mean attention of the last queries over all layers and heads, float32 ``[n]``."""
        with torch.no_grad():
            attentions = self.model(torch.tensor([list(token_ids)]), output_attentions=True, use_cache=False).attentions
        return torch.stack([layer[0, :, -queries:, :].mean((0, 1)) for layer in attentions]).mean(0)

    @staticmethod
    def mask(hidden: torch.Tensor) -> torch.Tensor:
        """The additive mask of attention logits, float32 ``[1, 1, n, n]``."""
        return torch.zeros(hidden.shape).masked_fill(hidden, float("-inf"))[None, None]

    @staticmethod
    def hidden(length: int, evictions: Iterable[LedgerEntry]) -> torch.Tensor:
        """What each query may not see, bool ``[n, n]``: later tokens, and evicted ones from their eviction on."""
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        for entry in evictions:
            hidden[entry.computed_tokens :, entry.token_start : entry.token_end] = True
        return hidden


def logprob_distance(
    reference_rows: torch.Tensor, prompt_tokens: int, logprobs: Sequence[Mapping[int, float]], *, skip: int = 0
) -> float:
    """Largest |difference| between an engine's top log-probabilities and the reference's.

    Args:
        reference_rows: float32 ``[n, vocab]`` over prompt and generated tokens (the last one excluded).
        prompt_tokens: length of the prompt.
        logprobs: the engine's, by token id, one mapping a generated token.
        skip: generated tokens to leave out at the start.
    """
    worst = 0.0
    for index, row in enumerate(logprobs):
        if index >= skip:
            for token_id, logprob in row.items():
                worst = max(worst, abs(logprob - reference_rows[prompt_tokens - 1 + index, token_id].item()))
    return worst
