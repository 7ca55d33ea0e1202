"""A seeded small random Llama in a folder: real vLLM steps in a millisecond, for tests that need many of them."""

from __future__ import annotations

import shutil
from pathlib import Path

VOCABULARY = 1024
"""Token ids of the model; the tokenizer knows more of them, which nothing ever samples."""


def random_llama(
    folder: Path,
    tokenizer_from: str,
    *,
    seed: int = 0,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    vocabulary: int = VOCABULARY,
) -> str:
    """Write a Llama with random float32 weights and another model's tokenizer into a folder, unless it is there.

    The weights are wide enough for attention to be far from uniform, so that evicting a page changes tokens.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    if not (folder / "config.json").exists():
        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=heads * 64,
            intermediate_size=256,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=64,
            max_position_embeddings=4096,
            initializer_range=0.1,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=2,
            tie_word_embeddings=True,
        )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = LlamaForCausalLM(config).to(torch.float32)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            if (source := Path(tokenizer_from) / name).exists():
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, folder / name)
        model.save_pretrained(folder)
    return str(folder)
