"""The fingerprint of a model that may still be a Hugging Face id."""

from __future__ import annotations

from pathlib import Path

from memdecay_agents.recall import model_fingerprint


def fingerprint_of(model: str) -> str | None:
    """Of a local folder, or of what the hub's cache holds of a Hugging Face id; None: no safetensors files.

    Args:
        model: as ``resolve_model`` gives it.
    """
    if Path(model).is_dir():
        return model_fingerprint(Path(model))
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return model_fingerprint(Path(snapshot_download(model, local_files_only=True)))
    except (LocalEntryNotFoundError, OSError):
        return None
