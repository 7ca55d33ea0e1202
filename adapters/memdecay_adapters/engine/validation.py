"""What is checked before a request reaches vLLM: an error there would end the engine, here only the call."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memdecay_agents.budgets import check_budget
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import BudgetError, EngineError
from memdecay_agents.hints import RequestHints
from memdecay_agents.spans import Span

if TYPE_CHECKING:
    from vllm import SamplingParams


class PoolShape(NamedTuple):
    """What a request has to fit into, in pages."""

    total_pages: int
    """Usable pages of the block pool."""
    chunk_pages: int
    """Pages of one prefill chunk."""


def check_request(
    prompt_token_ids: list[int],
    sampling: SamplingParams,
    hints: RequestHints | None,
    config: MemDecayConfig,
    max_model_len: int,
    pool: PoolShape,
) -> None:
    """Check a request against its hints, the model and the configuration.

    Raises:
        HintsError: ``sampling.extra_args["memdecay"]`` is malformed.
        SpanError, RegionError, BudgetError: the hints do not fit the prompt, the configuration or the pool.
        EngineError: an empty prompt, one that leaves no room for an answer, ``n > 1``, or hints for a part of
            the prompt only (``base > 0``).
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
    max_new_tokens = sampling.max_tokens or room
    if hints is None:
        hints = RequestHints.from_extra_args(sampling.extra_args)
    if hints is None:
        hints = plain_hints(prompt_tokens, agent="request without hints")
    if hints.base:
        raise EngineError(
            where=f"hints of session {hints.session_id.key()!r}",
            rule=f"base={hints.base}: the embedded engine finds out itself what it holds of a session",
            remedy="Send the whole prompt, with base=0 and spans for all of it.",
        )
    hints.check(prompt_tokens, config)
    must_stay = check_budget(hints, prompt_tokens, max_new_tokens, config)
    _check_pool(hints, prompt_tokens + max_new_tokens, must_stay, config, pool)


def _check_pool(
    hints: RequestHints, most_tokens: int, must_stay_pages: int, config: MemDecayConfig, pool: PoolShape
) -> None:
    """Refuse a request that could never get its pages: it would wait for ever, and others behind it."""
    page = config.page_size_tokens
    needed = -(-most_tokens // page)
    budget = hints.agent_budget(config)
    if budget is not None and config.policy != "full":
        needed = min(needed, max(budget.guarantee // page, must_stay_pages) + pool.chunk_pages + 1)
    if needed > pool.total_pages:
        raise BudgetError(
            where=f"agent '{hints.agent}'",
            rule=f"the request may need {needed} pages ({must_stay_pages} must stay) and the pool has "
            f"{pool.total_pages}",
            remedy="Unpin what need not stay, or set a budget of at most "
            f"{(pool.total_pages - pool.chunk_pages - 1) * page} tokens, lower "
            "max_tokens, or give the engine more memory (engine_args: kv_cache_memory_bytes).",
        )


def plain_hints(prompt_tokens: int, *, session: str = "", agent: str = "") -> RequestHints:
    """What a request that names no regions is taken for under a default budget: one user span."""
    return RequestHints(session=session, agent=agent, spans=(Span(0, prompt_tokens, "user"),))
