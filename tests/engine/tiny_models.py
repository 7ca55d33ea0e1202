"""Folders of tiny models, without weights (``load_format="dummy"``), that the engine must refuse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

_LLAMA_LIKE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": True,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "sliding": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 64},
    "mixed": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "sliding_window": 64,
        "layer_types": ["sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 64,
    },
    "alibi": {"architectures": ["BloomForCausalLM"], "model_type": "bloom", "n_layer": 2, "n_head": 2},
    "hybrid": {
        "architectures": ["FalconH1ForCausalLM"],
        "model_type": "falcon_h1",
        "mamba_d_ssm": 128,
        "mamba_n_heads": 2,
        "mamba_d_head": 64,
        "mamba_n_groups": 1,
        "mamba_d_state": 16,
        "mamba_expand": 1,
    },
}


def tiny_model(folder: Path, kind: str, tokenizer_from: str) -> str:
    """Write a tiny model of the given kind, with another model's tokenizer, into a folder."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**_LLAMA_LIKE, **CONFIGS[kind]}))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        source = Path(tokenizer_from) / name
        if source.exists():
            shutil.copy(source, folder / name)
    return str(folder)
