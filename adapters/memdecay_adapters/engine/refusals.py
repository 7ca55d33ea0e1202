"""What vLLM refuses about a request, in our words."""

from __future__ import annotations

from memdecay_agents.errors import ConfigError, MemDecayError


def own_refusal(error: Exception) -> Exception:
    """vLLM's complaint about a request, as ours; anything else stays what it is."""
    from vllm.exceptions import VLLMClientError

    if isinstance(error, MemDecayError) or not isinstance(error, (ValueError, TypeError, VLLMClientError)):
        return error
    refusal = ConfigError(
        where="request",
        rule=f"vLLM refuses it: {str(error).strip().splitlines()[0] if str(error).strip() else error!r}".rstrip("."),
        remedy="Correct the sampling parameter or the engine argument that the message names.",
    )
    refusal.__cause__ = error
    return refusal
