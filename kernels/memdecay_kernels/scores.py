"""observe_tokens and score_pages: from attention mass to what each page of a session is worth."""

from __future__ import annotations

import torch

from memdecay_kernels.implementations import native_for
from memdecay_kernels.reference import scores as reference
from memdecay_kernels.terms import ObserveRule, ScoreTerms, TokenColumns


def observe_tokens(
    columns: TokenColumns[torch.Tensor],
    token_index: torch.Tensor,
    mass: torch.Tensor,
    rule: ObserveRule,
    *,
    newest_mass: torch.Tensor | None = None,
    represented_queries: int = 1,
    clock_ticks: int = 0,
) -> None:
    """Take one measurement into a session's columns, in place: moving average, sum, salience, clocks.

    With W represented queries it counts exactly as W single measurements of the same mass.

    Args:
        columns: the session's; changed at ``token_index`` only.
        token_index: int64 ``[m]``: the retained tokens, strictly increasing.
        mass: float32 ``[m]``: attention mass of each.
        rule: factors and thresholds.
        newest_mass: float32 ``[m]``: mass of the newest query alone, where it was measured; by default ``mass``.
        represented_queries: W.
        clock_ticks: the session's clock now.

    Raises:
        ValueError: an index beyond the columns, or arrays of different lengths.
    """
    if mass.shape != token_index.shape or (newest_mass is not None and newest_mass.shape != token_index.shape):
        raise ValueError(f"{tuple(mass.shape)} masses for {tuple(token_index.shape)} tokens")
    if not token_index.numel():
        return
    if token_index.device.type == "cpu" and int(token_index[-1]) >= columns.region.shape[0]:
        raise ValueError(f"token {int(token_index[-1])} is beyond the {columns.region.shape[0]} tokens of the columns")
    native = native_for("observe_tokens", mass.device)
    implementation = reference if native is None else native
    implementation.observe_tokens(columns, token_index, mass, newest_mass, rule, represented_queries, clock_ticks)


def score_pages(
    columns: TokenColumns[torch.Tensor],
    pages: torch.Tensor,
    evictable: torch.Tensor,
    terms: ScoreTerms[torch.Tensor],
    page_size_tokens: int,
    processed_tokens: int,
    clock_ticks: int,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The parts of each page's score: structure, attention, salience; their sum is the score.

    A part is the mean over the page's processed tokens. Ranks are taken among the tokens of evictable pages (equal
    values share their mean rank, 0 to 1) and are 0 elsewhere.

    Args:
        columns: the session's; not changed.
        pages: int64 ``[P]``: logical pages, ascending.
        evictable: bool ``[P]``: neither pinned nor protected; all their tokens are processed.
        terms: tables, weights and forms.
        page_size_tokens: tokens in a page; the columns are whole pages.
        processed_tokens: tokens whose keys are in the cache.
        clock_ticks: the session's clock now.
        out: float32 ``[3, P]``; by default a new tensor.

    Returns:
        ``out``.

    Raises:
        ValueError: a page beyond the columns, or arrays of different lengths.
    """
    if evictable.shape != pages.shape:
        raise ValueError(f"{tuple(evictable.shape)} flags for {tuple(pages.shape)} pages")
    if out is None:
        out = columns.ewma_mass.new_empty(3, pages.numel())
    if not pages.numel():
        return out
    capacity = columns.region.shape[0] // page_size_tokens
    if pages.device.type == "cpu" and not 0 <= int(pages[0]) <= int(pages[-1]) < capacity:
        raise ValueError(f"pages {int(pages[0])} to {int(pages[-1])} do not fit columns of {capacity} pages")
    native = native_for("score_pages", pages.device)
    implementation = reference if native is None else native
    implementation.score_pages(columns, pages, evictable, terms, page_size_tokens, processed_tokens, clock_ticks, out)
    return out
