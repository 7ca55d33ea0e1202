"""What is known about the model before any engine runs, and what its fields may say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.language_models.model_profile import ModelProfile

from memdecay_adapters.langgraph.metadata import NodeSettings, check_regions
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from memdecay_adapters.langchain.chat_fields import ChatMemDecayFields


def check_fields(model: ChatMemDecayFields) -> None:
    """Check a chat model's fields against each other.

    Raises:
        ConfigError: settings of an engine beside an engine.
        RegionError: an unknown region.
    """
    where = "ChatMemDecay"
    if model.engine is not None and (model.config is not None or model.engine_args):
        raise ConfigError(
            where=where,
            rule="'engine' is given beside 'config' or 'engine_args', which only a new engine reads",
            remedy="Give them to the engine, or leave 'engine' out.",
        )
    config = model.engine.config if model.engine is not None else model.config or MemDecayConfig()
    named = NodeSettings(pin=model.pin, output_region=model.default_output_region)
    check_regions(named, config.region_names, where)


def per_call_model(model: ChatMemDecayFields, call: Mapping[str, Any]) -> None:
    """Refuse a call that asks for another model than the engine holds.

    Raises:
        UnsupportedError: it does.
    """
    asked = call.get("model")
    if asked is not None and asked not in (model.model, model.model_name):
        raise UnsupportedError(
            where=f"model={asked!r} in a call",
            rule=f"this engine holds {model.model_name!r}",
            remedy="Make another ChatMemDecay for another model.",
        )


def model_profile(model: ChatMemDecayFields) -> ModelProfile:
    """Return what middleware wants to know; ``max_input_tokens`` only where it is known without an engine."""
    profile = ModelProfile(
        text_inputs=True,
        image_inputs=False,
        audio_inputs=False,
        video_inputs=False,
        text_outputs=True,
        reasoning_output=False,
        tool_calling=True,
        tool_choice=True,
        tool_call_streaming=True,
        structured_output=True,
    )
    length = _max_model_len(model)
    if length is not None:
        profile["max_input_tokens"] = length
    return profile


def _max_model_len(model: ChatMemDecayFields) -> int | None:
    if model.engine is not None:
        return int(model.engine.max_model_len)
    given = model.engine_args.get("max_model_len")
    if isinstance(given, int):
        return given
    config_file = Path(model.model) / "config.json" if model.model else None
    if config_file is None or not config_file.is_file():
        return None
    length = json.loads(config_file.read_text(encoding="utf-8")).get("max_position_embeddings")
    return length if isinstance(length, int) else None
