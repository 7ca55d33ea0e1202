"""What a finished request says about itself: usage, finish reason, log-probabilities, what the cache kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata

from memdecay_adapters.langchain.kept_ids import IDS_KEY, ids_to_keep

if TYPE_CHECKING:
    from memdecay_adapters.engine import GenerationResult

PROVIDER = "memdecay"
"""``model_provider`` of every message, and ``ls_provider`` in traces."""


def usage_metadata(result: GenerationResult, reasoning_tokens: int | None = None) -> UsageMetadata:
    """Token counts of a request. ``cache_read``: prompt tokens found in the cache; ``reasoning``: where it is read."""
    usage = UsageMetadata(
        input_tokens=result.prompt_tokens,
        output_tokens=result.generated_tokens,
        total_tokens=result.prompt_tokens + result.generated_tokens,
        input_token_details=InputTokenDetails(cache_read=result.cached_tokens),
    )
    if reasoning_tokens is not None:
        usage["output_token_details"] = OutputTokenDetails(reasoning=reasoning_tokens)
    return usage


def response_metadata(
    result: GenerationResult,
    model_name: str,
    tool_calls: bool,
    with_logprobs: bool,
    tokenizer: Any,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return plain, JSON-safe metadata of an answer; ``more`` stands beside what ``memdecay`` holds.

    ``finish_reason`` is OpenAI's: "tool_calls" for a complete answer that calls tools, else vLLM's ("stop",
    "length", "abort"). ``memdecay`` holds the retention summary (see ``RetentionSummary``), times, and the
    generated ids where the tokenizer would make others of the text (`ids_to_keep`).
    """
    finish = result.finish_reason
    retention = _plain(result.retention.to_dict()) if result.retention is not None else {}
    metadata: dict[str, Any] = {
        "model_name": model_name,
        "model_provider": PROVIDER,
        "finish_reason": "tool_calls" if tool_calls and finish == "stop" else finish,
        "memdecay": {
            **retention,
            "wall_seconds": result.wall_seconds,
            "time_to_first_token_seconds": result.time_to_first_token_seconds,
            **(more or {}),
        },
    }
    if (kept := ids_to_keep(tokenizer, result.token_ids, result.text)) is not None:
        metadata["memdecay"][IDS_KEY] = kept
    if result.stop_reason is not None:
        metadata["stop_reason"] = result.stop_reason
    if with_logprobs and result.logprobs is not None:
        metadata["logprobs"] = {"content": openai_logprobs(result.token_ids, result.logprobs, tokenizer)}
    return metadata


def openai_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[Mapping[int, Any]], tokenizer: Any
) -> list[dict[str, Any]]:
    """Log-probabilities in OpenAI's form: one entry a generated token, alternatives best first.

    Args:
        token_ids: the generated tokens.
        logprobs: vLLM's ``Logprob`` by token id, one mapping a token.
        tokenizer: names tokens that vLLM did not decode.
    """

    def entry(token_id: int, logprob: Any) -> dict[str, Any]:
        text = logprob.decoded_token
        if text is None:
            text = tokenizer.decode([token_id])
        return {
            "token": text,
            "logprob": float(logprob.logprob),
            "bytes": list(text.encode("utf-8", "replace")),
        }

    content = []
    for token_id, alternatives in zip(token_ids, logprobs, strict=False):
        best = sorted(alternatives.items(), key=lambda item: -item[1].logprob)
        top = [entry(other, logprob) for other, logprob in best]
        content.append({**entry(token_id, alternatives[token_id]), "top_logprobs": top})
    return content


def _plain(value: Any) -> Any:
    """Lists in place of tuples, all the way down: what a checkpoint gives back equals what it was given."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
