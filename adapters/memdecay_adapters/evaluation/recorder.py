"""Records attention with transformers: one full-cache pass, every query, one layer at a time.

transformers' own hook for attention functions (``AttentionInterface``) is used; memory beside the model is one block
of queries of one layer, and the n x n result. Recordings are kept on disk and found again by their content.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional

from memdecay_adapters.engine.observer import observed_layer_names
from memdecay_adapters.models.default_model import cache_folder
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import TraceError
from memdecay_agents.evaluation.recording import FORMAT_VERSION, AttentionRecording
from memdecay_agents.evaluation.traces import TokenTrace

_numbers = itertools.count()
_BLOCK_QUERIES = 256
LONGEST_TOKENS = 16_384
"""Beyond, the n x n recording would not be small any more."""


class AttentionRecorder:
    """Records traces; loads the model when it has to.

    Args:
        model_path: a local folder or a Hugging Face id.
        config: which layers are observed.
        cache: folder of recordings; by default in the user's cache.
    """

    def __init__(self, model_path: str, config: MemDecayConfig, cache: Path | None = None) -> None:
        self.model_path = model_path
        self.config = config
        self.cache = cache or cache_folder() / "eval" / "recordings"
        self._model: Any = None
        self._pass: _Pass | None = None

    def path_of(self, trace: TokenTrace) -> Path:
        """Where the recording of a trace lies or will lie."""
        about = [FORMAT_VERSION, self.model_path, str(self.config.observed_layers)]
        digest = hashlib.sha256(json.dumps(about).encode())
        digest.update(trace.token_ids.tobytes())
        return self.cache / f"{digest.hexdigest()[:24]}.npz"

    def is_recorded(self, trace: TokenTrace) -> bool:
        """Whether the recording lies on disk."""
        return self.path_of(trace).exists()

    def record(self, trace: TokenTrace) -> AttentionRecording:
        """The recording of a trace, from disk if it is there.

        Raises:
            TraceError: the trace is longer than the model's context.
        """
        path = self.path_of(trace)
        known = AttentionRecording.load(path)
        if known is not None and np.array_equal(known.token_ids, trace.token_ids):
            return known
        recording = self._run(trace)
        recording.save(path)
        return recording

    def close(self) -> None:
        """Free the model."""
        self._model = None

    def _run(self, trace: TokenTrace) -> AttentionRecording:
        model = self._loaded()
        longest = min(int(getattr(model.config, "max_position_embeddings", LONGEST_TOKENS)), LONGEST_TOKENS)
        if trace.n_tokens > longest:
            raise TraceError(
                where=f"trace {trace.id!r}",
                rule=f"{trace.n_tokens} tokens, and the model reads at most {longest}",
                remedy="Leave it out, or choose a shorter length.",
            )
        n_layers = int(model.config.num_hidden_layers)
        names = [str(layer) for layer in range(n_layers)]
        observed = frozenset(int(name) for name in observed_layer_names(names, self.config.observed_layers))
        self._pass = _Pass(trace.n_tokens, observed)
        try:
            with torch.inference_mode():
                model.base_model(torch.from_numpy(trace.token_ids)[None], use_cache=False)
            return AttentionRecording.of(trace.token_ids, *self._pass.result())
        finally:
            self._pass = None

    def _loaded(self) -> Any:
        if self._model is None:
            from transformers import AttentionInterface, AutoModelForCausalLM

            name = f"memdecay_recording_{next(_numbers)}"  # names are the process's, and recorders may be several
            AttentionInterface.register(name, self._attend)
            self._model = AutoModelForCausalLM.from_pretrained(
                self.model_path, dtype=torch.float32, attn_implementation=name
            ).eval()
        return self._model

    def _attend(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        """Causal attention of one layer; ``[1, heads, n, head_dim]`` each, the keys with fewer heads."""
        assert self._pass is not None
        scale = scaling if scaling is not None else float(query.shape[-1]) ** -0.5
        attend: Callable[..., torch.Tensor] = (
            self._pass.attend if module.layer_idx in self._pass.observed else _plain_attention
        )
        return attend(query, key, value, scale).transpose(1, 2).contiguous(), None


def _plain_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)


class _Pass:
    """What one forward pass adds up."""

    def __init__(self, n_tokens: int, observed: frozenset[int]) -> None:
        self.observed = observed
        self._mass = torch.zeros(n_tokens, n_tokens)
        self._norms = torch.zeros(n_tokens)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
        """Attention of an observed layer; adds its mass (float32 [n, n]) and its key norms (float32 [n])."""
        self._norms += key[0].float().norm(dim=-1).mean(0)
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        output = torch.empty_like(query)
        for start in range(0, query.shape[2], _BLOCK_QUERIES):
            end = min(start + _BLOCK_QUERIES, query.shape[2])
            logits = query[:, :, start:end] @ key[:, :, :end].transpose(2, 3) * scale
            hidden = torch.ones(end - start, end, dtype=torch.bool).triu(start + 1)
            weights = logits.masked_fill_(hidden, float("-inf")).softmax(-1)
            output[:, :, start:end] = weights @ value[:, :, :end]
            self._mass[start:end, :end] += weights[0].mean(0)
        return output

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """Means over the observed layers: float32 [n, n] and [n]."""
        layers = len(self.observed)
        return (self._mass / layers).numpy(), (self._norms / layers).numpy()
