"""Whether client and server mean the same tokenizer: a digest of its vocabulary and of what it makes of a text."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_PROBE = "  Zwölf Kräne,\n\t{\"id\": [1, 20.5]}  naïve 你好 🙂 <|im_start|>user\n</think>it's 'done' _x_ 1234567"


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """A digest that is equal for tokenizers that give the same ids.

    Args:
        tokenizer: a transformers tokenizer, also as vLLM wraps it.
    """
    ids = list(tokenizer(_PROBE, add_special_tokens=False)["input_ids"])
    content = json.dumps([sorted(tokenizer.get_vocab().items()), ids])
    return hashlib.sha256(content.encode()).hexdigest()
