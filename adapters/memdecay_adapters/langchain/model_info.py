"""What is known about the model before any engine runs, and what its fields may say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.language_models.model_profile import ModelProfile

from memdecay_adapters.langchain.parser_choice import AUTO
from memdecay_adapters.langchain.time_limit import check_time_limit
from memdecay_adapters.langgraph.metadata import NodeSettings, check_regions
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ConfigError, UnsupportedError
from memdecay_agents.policies import get_policy

if TYPE_CHECKING:
    from memdecay_adapters.langchain.chat_fields import ChatMemDecayFields


def check_fields(model: ChatMemDecayFields) -> None:
    """Check a chat model's fields against each other.

    Raises:
        ConfigError: settings of an engine beside an engine.
        RegionError: an unknown region. PolicyError: a policy that nobody has registered.
    """
    where = "ChatMemDecay"
    check_time_limit(model.timeout, f"{where}(timeout=...)")
    if model.engine is not None and (model.config is not None or model.engine_args or model.host_tier):
        raise ConfigError(
            where=where,
            rule="'engine' is given beside 'config', 'engine_args' or 'host_tier', which only a new engine reads",
            remedy="Give them to the engine, or leave 'engine' out.",
        )
    if model.config is not None:
        get_policy(model.config.policy, model.config)
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
        image_url_inputs=False,
        pdf_inputs=False,
        image_tool_message=False,
        pdf_tool_message=False,
        reasoning_output=_reasons(model),
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
    if model.model is None:
        return model._unnamed_model_max_tokens()
    config_file = _local_config(model.model)
    if config_file is None:
        return None
    length = json.loads(config_file.read_text(encoding="utf-8")).get("max_position_embeddings")
    return length if isinstance(length, int) else None


def _local_config(model: str) -> Path | None:
    """The model's ``config.json``, in its folder or in the hub's cache; nothing is fetched."""
    folder = Path(model) / "config.json"
    if folder.is_file():
        return folder
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    try:
        cached = try_to_load_from_cache(model, "config.json")
    except ValueError:  # no hub id
        return None
    return Path(cached) if isinstance(cached, str) else None


def _reasons(model: ChatMemDecayFields) -> bool:
    """Whether reasoning is read out of the answers, as far as that is known without starting an engine."""
    if model.reasoning_parser != AUTO or (model.engine is None and model.chat_template is None):
        return model.reasoning_parser not in (AUTO, None)
    template = model.chat_template
    if template is None:
        template = getattr(model.engine.tokenizer, "chat_template", None)
    return isinstance(template, str) and "</think>" in template
