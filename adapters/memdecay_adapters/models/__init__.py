"""Which model to serve: the default one without a hub, or any Hugging Face id or local folder."""

from memdecay_adapters.models.default_model import DEFAULT_MODEL_MAX_TOKENS, DEFAULT_MODEL_NAME, default_model_path
from memdecay_adapters.models.resolve import resolve_model

__all__ = ["DEFAULT_MODEL_MAX_TOKENS", "DEFAULT_MODEL_NAME", "default_model_path", "resolve_model"]
