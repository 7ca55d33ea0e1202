"""A page's score in parts: the decaying priority of its regions, and what attention says of its tokens.

    s_i = b_r g(dt_i) + w_a A_i + w_s S_i          page score = mean over its processed tokens

A policy is a choice of terms (`ScoreTerms`); the arithmetic is here once, natively where the library was built.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from memdecay_agents.arrays import FloatArray
from memdecay_agents.pages import PageView
from memdecay_agents.ranks import ranks_within
from memdecay_agents.spans import SpanFlag
from memdecay_kernels.implementations import native_library
from memdecay_kernels.native import host
from memdecay_kernels.terms import ScoreTerms

Terms: TypeAlias = ScoreTerms[FloatArray]
PARTS = ("structure", "attention", "salience")
"""Names of the parts, in order."""


def token_structure(view: PageView, terms: Terms) -> FloatArray:
    """The decaying priority of each token's region, float32 [P, page]."""
    age = view.age_ticks.astype(np.float32)
    if terms.decay_form == "power_law":
        decay = np.float32(1.0) / (np.float32(1.0) + age / terms.half_life_ticks[view.region])
    else:
        decay = np.exp(-terms.decay_rate_per_tick[view.region] * age)
    priority = terms.base_priority[view.region]
    if view.flags.any():
        superseded = (view.flags & np.int8(SpanFlag.SUPERSEDED)) != 0
        priority = np.where(superseded, priority * np.float32(terms.superseded_factor), priority)
    return np.asarray(priority * decay, dtype=np.float32)


def token_parts(view: PageView, terms: Terms) -> dict[str, FloatArray]:
    """The parts of each token's score, float32 [P, page] each; ranks are 0 on pages that are not evictable."""
    attention = view.gather(getattr(view.columns, terms.attention_column))
    return {
        "structure": token_structure(view, terms),
        "attention": np.float32(terms.attention_weight) * _term(view, attention, terms.attention_form),
        "salience": np.float32(terms.salience_weight) * _term(view, view.salience, terms.salience_form),
    }


def page_parts(view: PageView, terms: Terms) -> dict[str, FloatArray]:
    """The parts of each page's score, float32 [P] each; their sum is the score."""
    library = native_library()
    if library is None:
        return {name: view.page_mean(part) for name, part in token_parts(view, terms).items()}
    out = np.empty((len(PARTS), view.n_pages), dtype=np.float32)
    host.score_pages(
        library, view.columns, view.page_index, view.evictable, terms, view.page_size_tokens,
        min(view.processed_tokens, view.n_tokens), view.clock_ticks, out,
    )  # fmt: skip
    return dict(zip(PARTS, out, strict=True))


def _term(view: PageView, values: FloatArray, form: str) -> FloatArray:
    return ranks_within(values, view.evictable) if form == "rank" else values
