"""What is checked before a request reaches vLLM: an error there would end the engine, here only the call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memdecay_agents.budgets import check_budget
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import EngineError
from memdecay_agents.hints import RequestHints
from memdecay_agents.spans import Span

if TYPE_CHECKING:
    from vllm import SamplingParams


def check_request(
    prompt_token_ids: list[int],
    sampling: SamplingParams,
    hints: RequestHints | None,
    config: MemDecayConfig,
    max_model_len: int,
) -> None:
    """Check a request against its hints, the model and the configuration.

    Raises:
        SpanError, RegionError, BudgetError: the hints do not fit the prompt or the configuration.
        EngineError: an empty prompt, one that leaves no room for an answer, ``n > 1``, or hints for a part
            of the session (``base > 0``), which this version does not serve.
    """
    prompt_tokens = len(prompt_token_ids)
    if not prompt_tokens:
        raise EngineError(where="prompt", rule="it is empty", remedy="Send at least one token.")
    room = max_model_len - prompt_tokens
    if room < 1 or (sampling.max_tokens or 0) > room:
        raise EngineError(
            where=f"prompt of {prompt_tokens} tokens",
            rule=f"with max_tokens={sampling.max_tokens} it does not fit the model's {max_model_len} tokens",
            remedy=f"Lower max_tokens to at most {max(room, 0)}, or shorten the prompt. Eviction frees memory; "
            "positions go on counting.",
        )
    if sampling.n > 1:
        raise EngineError(
            where="sampling",
            rule=f"n={sampling.n}: parallel samples of one request would share evictions",
            remedy="Send n requests.",
        )
    if hints is None:
        if config.default_budget_tokens is None:
            return
        hints = plain_hints(prompt_tokens, agent="request without hints")
    if hints.base:
        raise EngineError(
            where=f"hints of session {hints.session_id.key()!r}",
            rule=f"base={hints.base}: resuming a session in the cache is not supported yet",
            remedy="Send the whole prompt with base=0.",
        )
    hints.check(prompt_tokens, config)
    check_budget(hints, prompt_tokens, sampling.max_tokens or room, config)


def plain_hints(prompt_tokens: int, *, session: str = "", agent: str = "") -> RequestHints:
    """What a request that names no regions is taken for under a default budget: one user span."""
    return RequestHints(session=session, agent=agent, spans=(Span(0, prompt_tokens, "user"),))
