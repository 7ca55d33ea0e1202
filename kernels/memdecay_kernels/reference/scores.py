"""observe_tokens and score_pages, defined: the arithmetic of a token's evidence and of a page's score."""

from __future__ import annotations

import torch

from memdecay_kernels.terms import ObserveRule, ScoreTerms, TokenColumns

SUPERSEDED_FLAG = 2


def observe_tokens(
    columns: TokenColumns[torch.Tensor],
    token_index: torch.Tensor,
    mass: torch.Tensor,
    newest_mass: torch.Tensor | None,
    rule: ObserveRule,
    represented_queries: int,
    clock_ticks: int,
) -> None:
    """See `memdecay_kernels.observe_tokens`; changes the columns in place."""
    weight = represented_queries
    relative = mass * token_index.numel()
    keep = torch.tensor((1.0 - rule.ewma_factor) ** weight, dtype=torch.float32, device=mass.device)
    columns.ewma_mass[token_index] = keep * columns.ewma_mass[token_index] + (1.0 - keep) * mass
    columns.accumulated_relative[token_index] += weight * relative
    columns.last_query_mass[token_index] = mass if newest_mass is None else newest_mass
    old = token_index <= token_index[-1] - rule.salience_min_age_tokens
    salience = local_salience(relative, rule.salience_neighbours, rule.salience_floor_relative)
    columns.salience_sum[token_index[old]] += weight * salience[old]
    columns.salience_weight[token_index[old]] += weight
    if rule.refresh != "never":
        seen = mass if rule.refresh == "raw_mass" else relative
        columns.refreshed_at_ticks[token_index[seen > rule.refresh_threshold]] = clock_ticks


def local_salience(relative_mass: torch.Tensor, neighbours: int, floor: float) -> torch.Tensor:
    """log of each floored relative mass over the mean of itself and its neighbours, float32 ``[m]``."""
    count = relative_mass.numel()
    floored = relative_mass.clamp(min=floor)
    total = torch.zeros(count + 1, dtype=torch.float64, device=relative_mass.device)
    total[1:] = floored.double().cumsum(0)
    position = torch.arange(count, device=relative_mass.device)
    first, last = (position - neighbours).clamp(min=0), (position + neighbours + 1).clamp(max=count)
    mean = (total[last] - total[first]) / (last - first)
    return torch.log(floored / mean.float())


def unit_ranks(values: torch.Tensor) -> torch.Tensor:
    """Ranks in [0, 1], equal values sharing their mean rank, float32 ``[n]``; one value: 0.5."""
    count = values.numel()
    if count < 2:
        return torch.full((count,), 0.5, device=values.device)
    _, inverse, counts = torch.unique(values, sorted=True, return_inverse=True, return_counts=True)
    last = counts.cumsum(0)
    mean_rank: torch.Tensor = (2 * last - counts - 1).float() * 0.5
    return mean_rank[inverse] / (count - 1)


def score_pages(
    columns: TokenColumns[torch.Tensor],
    pages: torch.Tensor,
    evictable: torch.Tensor,
    terms: ScoreTerms[torch.Tensor],
    page_size_tokens: int,
    processed_tokens: int,
    clock_ticks: int,
    out: torch.Tensor,
) -> None:
    """See `memdecay_kernels.score_pages`; writes ``out``, float32 ``[3, P]``."""

    def paged(column: torch.Tensor) -> torch.Tensor:
        return column.view(-1, page_size_tokens)[pages]

    region = paged(columns.region).long()
    age = (clock_ticks - paged(columns.refreshed_at_ticks)).clamp(min=0).float()
    if terms.decay_form == "power_law":
        decay = 1.0 / (1.0 + age / terms.half_life_ticks[region])
    else:
        decay = torch.exp(-terms.decay_rate_per_tick[region] * age)
    superseded = (paged(columns.flags) & SUPERSEDED_FLAG) != 0
    priority = terms.base_priority[region] * torch.where(superseded, terms.superseded_factor, 1.0)
    salience = paged(columns.salience_sum) / paged(columns.salience_weight).clamp(min=1.0)
    attention = paged(getattr(columns, terms.attention_column))
    parts = (
        priority * decay,
        terms.attention_weight * _term(attention, evictable, terms.attention_form),
        terms.salience_weight * _term(salience, evictable, terms.salience_form),
    )
    count = (processed_tokens - pages * page_size_tokens).clamp(0, page_size_tokens)
    valid = torch.arange(page_size_tokens, device=pages.device) < count[:, None]
    for row, part in enumerate(parts):
        out[row] = torch.where(valid, part, 0.0).sum(1) / count.clamp(min=1)


def _term(values: torch.Tensor, evictable: torch.Tensor, form: str) -> torch.Tensor:
    if form == "magnitude":
        return values
    ranks = torch.zeros_like(values)
    chosen = values[evictable]
    ranks[evictable] = unit_ranks(chosen.reshape(-1)).view(chosen.shape)
    return ranks
