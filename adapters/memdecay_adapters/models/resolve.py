"""From what the user wrote to what vLLM can load."""

from __future__ import annotations

from pathlib import Path

from memdecay_adapters.models.default_model import DEFAULT_MODEL_NAME, default_model_path
from memdecay_agents.errors import ModelError


def resolve_model(model: str | None) -> str:
    """Return a local folder or a Hugging Face id for ``model``.

    Args:
        model: None or ``"SmolLM2-135M-Instruct"`` for the default model (built into the user's cache on
            first use), a local folder, or a Hugging Face id, which vLLM itself will fetch.

    Raises:
        ModelError: a path that is not a model folder, or a default model that cannot be built.
    """
    if model is None or model == DEFAULT_MODEL_NAME:
        return str(default_model_path())
    path = Path(model).expanduser()
    if path.exists():
        if not (path / "config.json").is_file():
            raise ModelError(
                where=f"model {model!r}",
                rule="the folder holds no config.json",
                remedy="Give the folder of a Hugging Face checkpoint, a Hugging Face id, or nothing at all.",
            )
        return str(path)
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise ModelError(
            where=f"model {model!r}",
            rule="there is no such folder",
            remedy="Check the path, give a Hugging Face id, or nothing at all for the default model.",
        )
    return model
