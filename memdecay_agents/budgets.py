"""Whether a budget can hold what must stay: pinned pages, sinks, the recent window, the page being written."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from memdecay_agents.arrays import BoolArray
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import BudgetError
from memdecay_agents.hints import RequestHints
from memdecay_agents.spans import Span, SpanFlag

_FIELDS = {"fixed": "budget_tokens", "fraction": "floor_tokens", "share": "guaranteed_tokens"}


def budget_pages(budget_tokens: int | None, page_size_tokens: int) -> int | None:
    """Whole pages of a budget; None: no limit."""
    return None if budget_tokens is None else budget_tokens // page_size_tokens


def pinned_regions(pins: Collection[str], config: MemDecayConfig) -> tuple[str, ...]:
    """Regions pinned by a request or by the configuration; none where the configuration ignores pins."""
    if not config.policy_pins:
        return ()
    return tuple(name for name, profile in config.regions.items() if profile.pinned or name in pins)


def pinned_pages_by_region(spans: Sequence[Span], pins: Collection[str], config: MemDecayConfig) -> dict[str, set[int]]:
    """Pages that a pinned token of each region touches."""
    regions = pinned_regions(pins, config)
    page = config.page_size_tokens
    touched: dict[str, set[int]] = {}
    for span in spans:
        if span.region in regions or (config.policy_pins and span.flags & SpanFlag.PINNED):
            touched.setdefault(span.region, set()).update(range(span.start // page, (span.end - 1) // page + 1))
    return touched


def minimum_budget_pages(
    spans: Sequence[Span],
    pins: Collection[str],
    config: MemDecayConfig,
    output_tokens: int,
    *,
    n_prompt_tokens: int | None = None,
    output_region: str = "scratchpad",
    pinned_pages_before: Collection[int] = (),
) -> int:
    """The most pages that cannot be evicted at any one time while the request runs.

    Args:
        spans: the spans of the prompt, or of its new tokens.
        pins: regions that the request pins.
        config: page size, sinks, recent window, pinned regions.
        output_tokens: tokens that the request may generate.
        n_prompt_tokens: length of the prompt; by default the end of the last span.
        output_region: region of the generated tokens; where it is pinned they all stay.
        pinned_pages_before: pages that earlier turns of the session pinned.
    """
    if n_prompt_tokens is None:
        n_prompt_tokens = spans[-1].end if spans else 0
    page = config.page_size_tokens
    total = n_prompt_tokens + output_tokens
    stays: BoolArray = np.zeros(-(-total // page) + 1, dtype=np.bool_)
    stays[: config.sink_pages] = True
    fixed = set(pinned_pages_before).union(*pinned_pages_by_region(spans, pins, config).values())
    stays[sorted(number for number in fixed if number < stays.shape[0])] = True
    if output_region in pinned_regions(pins, config):
        stays[n_prompt_tokens // page :] = True
    before = np.concatenate(([0], np.cumsum(stays)))
    # with k tokens processed: the fixed pages below the window, the window, and the page of token k
    processed = np.arange(total + 1)
    first = np.maximum(processed - config.recent_tokens, 0) // page
    last = np.minimum(processed, max(total - 1, 0)) // page
    return int((before[first] + last - first + 1).max())


def must_stay_pages(
    hints: RequestHints,
    n_prompt_tokens: int,
    max_new_tokens: int,
    config: MemDecayConfig,
    *,
    pinned_pages_before: Collection[int] = (),
) -> int:
    """`minimum_budget_pages` of a request: the most pages that nothing can take from it at any one time."""
    return minimum_budget_pages(
        hints.spans,
        hints.pins,
        config,
        max_new_tokens,
        n_prompt_tokens=n_prompt_tokens,
        output_region=hints.output_region,
        pinned_pages_before=pinned_pages_before,
    )


def check_budget(
    hints: RequestHints,
    n_prompt_tokens: int,
    max_new_tokens: int,
    config: MemDecayConfig,
    *,
    pinned_pages_before: Collection[int] = (),
) -> int:
    """Refuse a request whose budget cannot hold what must stay; return the pages that it needs at least.

    Raises:
        BudgetError: pinned pages above the budget, or the budget below the protected minimum.
    """
    needed = must_stay_pages(hints, n_prompt_tokens, max_new_tokens, config, pinned_pages_before=pinned_pages_before)
    agent_budget = hints.agent_budget(config)
    # a share may shrink to its guarantee at any time; the other two hold what they say for a prompt of this length
    tokens = None if agent_budget is None else agent_budget.limit(n_prompt_tokens)
    budget = budget_pages(tokens, config.page_size_tokens)
    if budget is None or needed <= budget or config.policy == "full":
        return needed
    by_region = pinned_pages_by_region(hints.spans, hints.pins, config)
    pinned = len(set(pinned_pages_before).union(*by_region.values()))
    output = hints.output_region if hints.output_region in pinned_regions(hints.pins, config) else None
    field = _FIELDS[agent_budget.kind] if agent_budget is not None else "budget_tokens"
    remedy = f"Raise {field} to at least {needed * config.page_size_tokens}"
    largest = max(by_region, key=lambda region: len(by_region[region]), default=output)
    if output is not None and -(-max_new_tokens // config.page_size_tokens) > pinned:
        largest = output
    remedy += f" or unpin '{largest}'." if largest is not None else "."
    if pinned > budget:
        rule = f"{pinned} pinned pages exceed the budget of {budget} pages"
    else:
        rule = (
            f"the budget of {budget} pages is below the {needed} that must stay ({pinned} pinned"
            + (f", up to {max_new_tokens} generated tokens of the pinned region '{output}'" if output else "")
            + f", {config.sink_pages} sink, the last {config.recent_tokens} tokens, 1 being written)"
        )
    raise BudgetError(where=hints.where, rule=rule, remedy=remedy)
