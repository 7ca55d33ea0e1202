"""Reads a text once with transformers, then asks about it: post-rotary queries and keys of every layer, in float32.

transformers' own hook for attention functions (``AttentionInterface``) is used. The text's keys and values stay in
transformers' cache; each question continues it and is cut off again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as functional

from memdecay_agents.errors import ModelError, UnsupportedError

_NAME = "memdecay_reader"
_UNREAD = ("softcap", "s_aux")
"""Arguments of attention functions that this one does not heed: the models that give them are refused."""

Seen = Callable[[int, torch.Tensor, torch.Tensor, float], None]
"""Told a layer, its queries [heads, n_new, head_dim], its keys [kv_heads, n, head_dim], the scale of its logits."""


class Reader:
    """A model that reads and is asked.

    Args:
        model_path: a local folder or a Hugging Face id.
    """

    def __init__(self, model_path: str) -> None:
        from transformers import AttentionInterface, AutoModelForCausalLM

        AttentionInterface.register(_NAME, self._attend)
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            model_path, dtype=torch.float32, attn_implementation=_NAME
        ).eval()
        self.model_path = model_path
        self._seen: Seen | None = None
        self._cache: Any = None
        self._hidden: torch.Tensor | None = None
        self.n_tokens = 0
        """Of the text that was read last."""

    def read(self, token_ids: Sequence[int]) -> None:
        """Compute the text's keys and values.

        Raises:
            ModelError: a token that the model does not know: its tokenizer is another model's.
        """
        from transformers import DynamicCache

        known = int(self.model.get_input_embeddings().num_embeddings)
        if max(token_ids) >= known:
            raise ModelError(
                where=f"model {self.model_path!r}",
                rule=f"its tokenizer gives token {max(token_ids)}, and it knows {known} tokens",
                remedy="Put the model's own tokenizer into its folder, or name its retrieval heads.",
            )
        self._cache = DynamicCache(config=self.model.config)
        self.n_tokens = len(token_ids)
        with torch.inference_mode():
            self.model.base_model(torch.tensor([list(token_ids)]), past_key_values=self._cache, use_cache=True)

    def ask(
        self, token_ids: Sequence[int], seen: Seen | None = None, hidden: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute a question behind the text, and forget it again.

        Args:
            token_ids: the question.
            seen: told every layer whose attention reaches the whole text.
            hidden: bool [n_tokens]: tokens of the text that the question does not see; None: it sees all.

        Returns:
            float32 [vocabulary]: logits of the next token.
        """
        self._seen, self._hidden = seen, hidden
        try:
            with torch.inference_mode():
                out = self.model(
                    torch.tensor([list(token_ids)]), past_key_values=self._cache, use_cache=True, logits_to_keep=1
                )
                self._cache.crop(-len(token_ids))
                logits: torch.Tensor = out.logits[0, -1]
                return logits
        finally:
            self._seen = self._hidden = None

    def _attend(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        """Causal attention of one layer; ``[1, heads, n, head_dim]`` each, the keys with fewer heads."""
        if unread := [name for name in _UNREAD if others.get(name) is not None]:
            raise UnsupportedError(
                where=f"model {self.model_path!r}",
                rule=f"its attention uses {', '.join(unread)}, which the search for retrieval heads does not know",
                remedy="Give heads that you know, or recall nothing by evidence.",
            )
        scale = scaling if scaling is not None else float(query.shape[-1]) ** -0.5
        if self._seen is not None and sliding_window is None:
            self._seen(int(module.layer_idx), query[0], key[0], scale)
        mask = _visible(query.shape[2], key.shape[2], sliding_window, self._hidden)
        output = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
        )
        return output.transpose(1, 2).contiguous(), None


def _visible(n_new: int, n_all: int, window: int | None, hidden: torch.Tensor | None) -> torch.Tensor | None:
    """bool [n_new, n_all]; None: plainly causal."""
    if n_new == n_all and window is None:
        return None
    visible = torch.ones(n_new, n_all, dtype=torch.bool).tril(n_all - n_new)
    if window is not None:
        visible &= ~torch.ones(n_new, n_all, dtype=torch.bool).tril(n_all - n_new - window)
    if hidden is not None:
        visible[:, : hidden.shape[0]] &= ~hidden
    return visible
