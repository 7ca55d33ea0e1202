"""From what the user wrote to what vLLM can load."""

from __future__ import annotations

from pathlib import Path

from memdecay_adapters.models.checkpoint import check_checkpoint
from memdecay_adapters.models.default_model import DEFAULT_MODEL_NAME, default_model_path
from memdecay_agents.errors import ModelError


def resolve_model(model: str | None, *, require_weights: bool = False) -> str:
    """Return a local folder or a Hugging Face id for ``model``.

    Args:
        model: None or ``"SmolLM2-135M-Instruct"`` for the default model (built into the user's cache on
            first use), a local folder, or a Hugging Face id, which vLLM itself will fetch.
        require_weights: refuse a local folder without weights.

    Raises:
        ModelError: a path that is not a whole model folder, or a default model that cannot be built.
    """
    if model is None or model == DEFAULT_MODEL_NAME:
        return str(default_model_path())
    path = Path(model).expanduser()
    if path.exists():
        check_checkpoint(path, require_weights=require_weights)
        return str(path)
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise ModelError(
            where=f"model {model!r}",
            rule="there is no such folder",
            remedy="Check the path, give a Hugging Face id, or nothing at all for the default model.",
        )
    return model
