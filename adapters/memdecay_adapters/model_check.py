"""Whether a model's attention can be evicted from, told from its ``config.json`` without loading anything.

The engine refuses the same at start-up from vLLM's own view of the model (`engine.support`); this is what can be said
before, and what the pages will be.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_FULL = "Use a model with full attention in all layers (Llama, Qwen2.5, Qwen3, SmolLM2, ...)."
_SEVERAL_KINDS = ("sliding_attention", "linear_attention", "chunked_attention", "mamba")
_OTHER_INPUTS = ("vision_config", "audio_config", "image_token_id", "video_token_id")
_STATE_SPACE = ("mamba_d_state", "ssm_state_size", "layers_block_type", "hybrid_override_pattern", "conv_L_cache")


class AttentionFacts(NamedTuple):
    """What a model's keys and values are."""

    layers: int
    query_heads: int
    key_heads: int
    head_dim: int
    dtype: str
    """In which vLLM runs the checkpoint and keeps its cache, unless ``dtype`` says otherwise: the checkpoint's own, or
    bfloat16 for one in float32."""
    max_tokens: int | None
    """Longest sequence; None: not said."""

    @property
    def cache_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers, in that type."""
        return 2 * self.layers * self.key_heads * self.head_dim * _BYTES.get(self.dtype, 2)


def read_config(model: str) -> dict[str, Any] | None:
    """The ``config.json`` of a folder, or of an id that was fetched before; None: it is not on this machine."""
    path = Path(model) / "config.json"
    if not path.is_file():
        from huggingface_hub import try_to_load_from_cache

        try:
            found = try_to_load_from_cache(model, "config.json")
        except ValueError:
            return None
        if not isinstance(found, str):
            return None
        path = Path(found)
    config = json.loads(path.read_text(encoding="utf-8"))
    return config if isinstance(config, dict) else None


def attention_facts(config: Mapping[str, Any]) -> AttentionFacts | None:
    """Read the shape of attention; None: the configuration does not say it in the usual names."""
    text = _text(config)
    layers, heads = text.get("num_hidden_layers"), text.get("num_attention_heads")
    if not isinstance(layers, int) or not isinstance(heads, int) or not heads:
        return None
    head_dim = text.get("head_dim") or int(text.get("hidden_size") or 0) // heads
    stored = str(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "bfloat16")
    dtype = stored.removeprefix("torch.")
    most = text.get("max_position_embeddings")
    return AttentionFacts(
        layers, heads, int(text.get("num_key_value_heads") or heads), int(head_dim),
        "bfloat16" if dtype == "float32" else dtype,  # as vLLM's auto does
        most if isinstance(most, int) else None,
    )  # fmt: skip


def refusal_of(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """What the engine would refuse about the model: (why, what to change); None: nothing that can be seen here."""
    text = _text(config)
    kinds = set(text.get("layer_types") or ())
    windows = bool(text.get("sliding_window")) and text.get("use_sliding_window", True) and not kinds
    refusals = [
        (windows or bool(kinds & set(_SEVERAL_KINDS)), "not all of its layers are full attention", _FULL),
        (any(text.get(key) for key in _STATE_SPACE), "it is a hybrid of attention and state-space layers", _FULL),
        (bool(text.get("kv_lora_rank")), "it uses multi-head latent attention",
         "Use a model with grouped-query attention."),
        (any(config.get(key) is not None for key in _OTHER_INPUTS), "it takes images, audio or video",
         "Use a text-only model."),
        (bool(text.get("alibi")) or text.get("position_embedding_type") == "alibi",
         "its attention has a bias by distance (ALiBi)", _FULL),
        (bool(text.get("attn_logit_softcapping")), "its attention has a soft cap", _FULL),
        (config.get("is_encoder_decoder") is True, "it is an encoder and a decoder", "Use a decoder."),
    ]  # fmt: skip
    return next(((rule, remedy) for refused, rule, remedy in refusals if refused), None)


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config
