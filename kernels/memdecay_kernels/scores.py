"""observe_tokens and score_pages: from attention mass to what each page of a session is worth."""

from __future__ import annotations

import torch

from memdecay_kernels.checks import check_increasing, check_tensor
from memdecay_kernels.implementations import native_for
from memdecay_kernels.reference import scores as reference
from memdecay_kernels.terms import ObserveRule, ScoreTerms, TokenColumns

_DTYPES = {"region": torch.int8, "flags": torch.int8, "refreshed_at_ticks": torch.int64}


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
    _check_columns(columns)
    check_tensor("token_index", token_index, (torch.int64,), (None,))
    count = token_index.numel()
    check_tensor("mass", mass, (torch.float32,), (count,))
    if newest_mass is not None:
        check_tensor("newest_mass", newest_mass, (torch.float32,), (count,))
    if represented_queries < 1 or rule.refresh not in ("never", "raw_mass", "relative_mass"):
        raise ValueError(f"{represented_queries} represented queries, refresh {rule.refresh!r}")
    if not count:
        return
    check_increasing("token_index", token_index, columns.region.shape[0])
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
    _check_columns(columns)
    check_tensor("pages", pages, (torch.int64,), (None,))
    check_tensor("evictable", evictable, (torch.bool,), (pages.numel(),))
    _check_terms(columns, terms)
    if page_size_tokens < 1 or columns.region.shape[0] % page_size_tokens:
        raise ValueError(f"columns of {columns.region.shape[0]} tokens are no whole pages of {page_size_tokens}")
    if out is None:
        out = columns.ewma_mass.new_empty(3, pages.numel())
    check_tensor("out", out, (torch.float32,), (3, pages.numel()))
    if not out.is_contiguous():
        raise ValueError("out has to be contiguous")
    check_increasing("pages", pages, columns.region.shape[0] // page_size_tokens)
    if not pages.numel():
        return out
    native = native_for("score_pages", pages.device)
    implementation = reference if native is None else native
    implementation.score_pages(columns, pages, evictable, terms, page_size_tokens, processed_tokens, clock_ticks, out)
    return out


def _check_columns(columns: TokenColumns[torch.Tensor]) -> None:
    for name, column in columns._asdict().items():
        check_tensor(name, column, (_DTYPES.get(name, torch.float32),), (columns.region.shape[0],))
        if not column.is_contiguous():
            raise ValueError(f"{name} has to be contiguous")


def _check_terms(columns: TokenColumns[torch.Tensor], terms: ScoreTerms[torch.Tensor]) -> None:
    regions = terms.base_priority.shape[0]
    for name in ("base_priority", "decay_rate_per_tick", "half_life_ticks"):
        check_tensor(name, getattr(terms, name), (torch.float32,), (regions,))
    if terms.decay_form not in ("exponential", "power_law"):
        raise ValueError(f"decay_form {terms.decay_form!r} is neither 'exponential' nor 'power_law'")
    for name in ("attention_form", "salience_form"):
        if getattr(terms, name) not in ("magnitude", "rank"):
            raise ValueError(f"{name} {getattr(terms, name)!r} is neither 'magnitude' nor 'rank'")
    if terms.attention_column not in columns._fields:
        raise ValueError(f"attention_column {terms.attention_column!r} is no column")
    region = columns.region
    if region.device.type == "cpu" and region.numel() and not 0 <= int(region.min()) <= int(region.max()) < regions:
        raise ValueError(f"regions {int(region.min())} to {int(region.max())} are not among {regions}")
