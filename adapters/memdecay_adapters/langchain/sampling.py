"""Sampling settings: from the model's fields and a call's keywords to vLLM's ``SamplingParams``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core import exceptions as lc_exceptions

from memdecay_agents.errors import ConfigError, MemDecayError

if TYPE_CHECKING:
    from vllm import SamplingParams

DEFAULT_MAX_TOKENS = 512
"""Most tokens of an answer where nobody says a number; fewer where the model's length leaves less room."""

SAMPLING_KEYS = frozenset(
    {
        "temperature", "max_tokens", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids",
        "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "ignore_eos",
        "bad_words", "logit_bias", "logprobs", "top_logprobs", "skip_special_tokens",
        "spaces_between_special_tokens", "trace_decode_token_ids",
    }
)  # fmt: skip
"""Keywords of a call that change the sampling; all but ``top_logprobs`` are vLLM's own names."""

ALIASES = {"max_completion_tokens": "max_tokens", "max_new_tokens": "max_tokens"}

_Overflow: Any = getattr(lc_exceptions, "ContextOverflowError", Exception)  # langchain-core before 1.2.10


class ContextLengthError(MemDecayError, _Overflow):  # type: ignore[misc]  # a base known at run time
    """Prompt and answer do not fit the model. Also langchain-core's ``ContextOverflowError``."""

    code = "context_length"


def sampling_fields(
    defaults: Mapping[str, Any], stop: Sequence[str] | str | None, call: Mapping[str, Any]
) -> dict[str, Any]:
    """Merge sampling settings: the call's keywords win over the model's fields; None counts as not given.

    Args:
        defaults: the model's fields.
        stop: LangChain's ``stop`` argument; replaces the model's stop strings.
        call: keywords of the call, sampling ones only.
    """
    merged = {key: value for key, value in defaults.items() if value is not None}
    merged.update({ALIASES.get(key, key): value for key, value in call.items() if value is not None})
    if stop is not None:
        merged["stop"] = stop
    if isinstance(merged.get("stop"), str):
        merged["stop"] = [merged["stop"]]
    return merged


def to_sampling_params(
    fields: Mapping[str, Any],
    *,
    prompt_tokens: int,
    max_model_len: int,
    grammar: str | None = None,
    make: Callable[..., Any] | None = None,
) -> SamplingParams:
    """Make vLLM's sampling parameters for one request.

    Args:
        fields: what `sampling_fields` returned.
        prompt_tokens: length of the prompt in tokens.
        max_model_len: longest sequence of the model in tokens.
        grammar: structural tag of the answer, as JSON.
        make: what an engine without a vLLM in this process has in place of ``SamplingParams``; it is given the
            grammar as ``structural_tag``.

    Raises:
        ContextLengthError: the prompt alone, or with the ``max_tokens`` that were asked for, is too long.
        ConfigError: a value that vLLM refuses.
    """
    values = {key: value for key, value in fields.items() if key not in ("logprobs", "top_logprobs")}
    values["max_tokens"] = _max_tokens(values.get("max_tokens"), prompt_tokens, max_model_len)
    values["logprobs"] = n_logprobs(fields)
    if make is not None:
        made: SamplingParams = make(**values, structural_tag=grammar)
        return made
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import StructuredOutputsParams

    if grammar is not None:
        values["structured_outputs"] = StructuredOutputsParams(structural_tag=grammar)
    try:
        return SamplingParams(**values)
    except (ValueError, TypeError, VLLMValidationError) as error:
        raise ConfigError(
            where="sampling",
            rule=str(error).rstrip("."),
            remedy="Correct the keyword; vLLM's names and ranges hold.",
        ) from error


def n_logprobs(fields: Mapping[str, Any]) -> int | None:
    """Alternatives per token that vLLM is asked for: from ``logprobs`` and ``top_logprobs``.

    Raises:
        ConfigError: a negative number; vLLM would take -1 for the whole vocabulary, at each token.
    """
    asked, top = fields.get("logprobs"), fields.get("top_logprobs")
    if asked is None or asked is False:
        return None
    number = int(top or 0) if asked is True else int(asked)
    if number < 0:
        raise ConfigError(
            where=f"logprobs={asked!r}" if asked is not True else f"top_logprobs={top!r}",
            rule="the number of alternatives per token cannot be negative",
            remedy="Give 0 for the chosen token only, or a number that the engine allows (max_logprobs, 20).",
        )
    return number


def _max_tokens(asked: int | None, prompt_tokens: int, max_model_len: int) -> int:
    room = max_model_len - prompt_tokens
    if room < 1 or (asked is not None and asked > room):
        wanted = "an answer" if asked is None else f"max_tokens={asked}"
        raise ContextLengthError(
            where=f"prompt of {prompt_tokens} tokens",
            rule=f"with {wanted} it does not fit the {max_model_len} tokens of the model",
            remedy=(f"Lower max_tokens to at most {room}, shorten" if room >= 1 else "Shorten")
            + " the messages, or raise max_model_len: eviction frees memory, positions go on counting.",
        )
    return min(DEFAULT_MAX_TOKENS, room) if asked is None else asked
