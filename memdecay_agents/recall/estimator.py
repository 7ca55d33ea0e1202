"""How strongly a turn asks for each page: exact attention of a few retrieval heads over the candidate pages alone.

For each query head and each of the last W query tokens: softmax over the tokens of all candidate pages, a page's mass,
the maximum over the W tokens; then the sum over the query heads. One estimator serves pages in host memory and pages
on the device: masses of one softmax can be compared, an exact one with a summary's cannot.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from memdecay_agents.arrays import BoolArray, FloatArray, IndexArray
from memdecay_agents.errors import ObservationError

NEIGHBOUR_SHARE = 0.75
"""Default of ``with_neighbours``. Heads look at the word after which a value would stand again; where a sentence lies
across two pages and says the value first, that is the page behind the value's."""

EvidenceArray: TypeAlias = npt.NDArray[np.float64]
"""Evidence by page, from 0 to the number of query heads."""


def page_evidence(queries: FloatArray, keys: FloatArray, valid: BoolArray, scale: float) -> EvidenceArray:
    """Evidence for each candidate page.

    Masses are computed from logarithms: logits far below the highest give small numbers, not zeros, and so no ties
    that would look like knowledge. In half precision they would.

    Args:
        queries: float32 [W, n_sel, group, head_dim], after the rotary embedding: the turn's last W tokens, for each
            selected KV head the query heads that share it.
        keys: float32 [n_pages, page, n_sel, head_dim], after the rotary embedding.
        valid: bool [n_pages, page]: which tokens exist; keys of the others are never looked at.
        scale: of the logits, as the model's attention uses it.

    Returns:
        float64 [n_pages]; 0 for a page without tokens.

    Raises:
        ObservationError: shapes that do not fit, or a logit that is no finite number.
    """
    _check(queries, keys, valid)
    window, n_selected, group, head_dim = queries.shape
    n_pages, page = valid.shape
    evidence = np.zeros(n_pages)
    if not valid.any() or not queries.size:
        return evidence
    missing = np.flatnonzero(~valid)
    for head in range(n_selected):
        rows = queries[:, head].reshape(window * group, head_dim) * np.float32(scale)
        with np.errstate(invalid="ignore", over="ignore"):  # of keys that are not looked at
            logits = keys[:, :, head].reshape(n_pages * page, head_dim) @ rows.T
        logits[missing] = 0.0
        if not np.isfinite(logits).all():
            raise _error("a logit is no finite number")
        logits[missing] = -np.inf
        by_page = _log_sum_exp(logits.reshape(n_pages, page, -1), axis=1).astype(np.float64)
        mass = np.exp(by_page - _log_sum_exp(by_page, axis=0))
        evidence += mass.reshape(n_pages, window, group).max(axis=1).sum(axis=1)
    return evidence


def with_neighbours(evidence: EvidenceArray, pages: IndexArray, share: float = NEIGHBOUR_SHARE) -> EvidenceArray:
    """Let each page count at least a share of what the page before or behind it has.

    Args:
        evidence: float64 [n].
        pages: int64 [n]: which page of the session each is, in any order, none twice.
        share: from 0 (nothing changes) to 1.

    Returns:
        float64 [n].
    """
    at = {page: row for row, page in enumerate(pages.tolist())}
    found = evidence.copy()
    for page, row in at.items():
        for beside in (page - 1, page + 1):
            if beside in at:
                found[row] = max(found[row], share * evidence[at[beside]])
    return found


def _log_sum_exp(values: npt.NDArray[np.floating], axis: int) -> npt.NDArray[np.floating]:
    """Over one axis; -inf where all of it is."""
    highest = values.max(axis=axis, keepdims=True)
    highest = np.where(np.isfinite(highest), highest, np.zeros_like(highest))
    shifted = values - highest
    np.exp(shifted, out=shifted)
    with np.errstate(divide="ignore"):
        found: npt.NDArray[np.floating] = np.log(shifted.sum(axis=axis)) + highest.squeeze(axis)
    return found


def _check(queries: FloatArray, keys: FloatArray, valid: BoolArray) -> None:
    if queries.ndim != 4 or keys.ndim != 4 or valid.ndim != 2:
        raise _error(f"queries, keys and valid have {queries.ndim}, {keys.ndim} and {valid.ndim} axes, not 4, 4 and 2")
    if keys.shape[:2] != valid.shape or (queries.shape[1], queries.shape[3]) != keys.shape[2:]:
        raise _error(f"queries {queries.shape}, keys {keys.shape} and valid {valid.shape} do not fit each other")
    if queries.dtype != np.float32 or keys.dtype != np.float32 or valid.dtype != np.bool_:
        raise _error(f"queries, keys and valid are {queries.dtype}, {keys.dtype} and {valid.dtype}")


def _error(rule: str) -> ObservationError:
    return ObservationError(
        where="page evidence",
        rule=rule,
        remedy="Give float32 queries [W, n_sel, group, head_dim] and keys [n_pages, page, n_sel, head_dim], "
        "bool valid [n_pages, page].",
    )
