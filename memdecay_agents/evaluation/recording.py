"""What one full-cache pass of a model says about a trace: who attends to what, and the keys' norms.

Every query's attention over all earlier tokens is kept as relative mass, averaged over the observed layers and all
heads, in half precision and without the empty half of the matrix: n * n bytes for n tokens, 3 MB at 1,700.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from memdecay_agents.arrays import FloatArray, IndexArray
from memdecay_agents.errors import TraceError

FORMAT_VERSION = 1


@dataclass(frozen=True, eq=False)
class AttentionRecording:
    """Attention of one trace of n tokens.

    Raises:
        TraceError: sizes that do not fit together, or a value that is not finite.
    """

    token_ids: IndexArray
    """int64 [n]."""
    packed: npt.NDArray[np.float16]
    """float16 [n (n + 1) / 2]: row q holds (q + 1) * mass of the tokens 0..q at query q; 1 is the uniform level."""
    key_norms: FloatArray
    """float32 [n]: Euclidean norm of each token's key, mean over observed layers and key heads."""

    def __post_init__(self) -> None:
        """Check sizes and values."""
        n = self.n_tokens
        if self.packed.shape != (n * (n + 1) // 2,) or self.key_norms.shape != (n,):
            raise _unusable(f"{self.packed.shape[0]} weights and {self.key_norms.shape[0]} norms for {n} tokens")
        if not (np.isfinite(self.packed).all() and np.isfinite(self.key_norms).all()):
            raise _unusable("it holds NaN or infinity")

    @property
    def n_tokens(self) -> int:
        """n."""
        return int(self.token_ids.shape[0])

    @classmethod
    def of(cls, token_ids: IndexArray, mass: FloatArray, key_norms: FloatArray) -> AttentionRecording:
        """Pack a whole matrix: float32 [n, n], row q the mass of tokens 0..q (what lies beyond is not looked at)."""
        n = mass.shape[0]
        packed = np.empty(n * (n + 1) // 2, dtype=np.float16)
        for query in range(n):
            first = query * (query + 1) // 2
            packed[first : first + query + 1] = mass[query, : query + 1] * (query + 1)
        return cls(np.asarray(token_ids, dtype=np.int64), packed, np.asarray(key_norms, dtype=np.float32))

    def row(self, query: int) -> FloatArray:
        """Mass of the tokens 0..query at one query, float32 [query + 1]; it sums to about 1."""
        first = query * (query + 1) // 2
        return self.packed[first : first + query + 1].astype(np.float32) / np.float32(query + 1)

    def mass_of(self, first_query: int, end_query: int, tokens: IndexArray) -> FloatArray:
        """Mean mass on retained tokens over the queries [first, end), as if the others were not there.

        Each query's mass is renormalised over the retained tokens that it may see, which is what a softmax over
        them gives where all heads agree on what is missing.

        Args:
            first_query, end_query: which queries.
            tokens: int64 [m], ascending; retained when the last of them is computed.

        Returns:
            float32 [m]; sums to 1.
        """
        total = np.zeros(tokens.shape[0], dtype=np.float32)
        for query in range(first_query, end_query):
            n_seen = int(np.searchsorted(tokens, query, side="right"))
            seen = self.row(query)[tokens[:n_seen]]
            total[:n_seen] += seen / max(float(seen.sum()), 1e-9)
        return total / np.float32(end_query - first_query)

    # ---- on disk

    def save(self, path: Path) -> None:
        """Write it; the file appears whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(
                    file,
                    version=np.int64(FORMAT_VERSION),
                    token_ids=self.token_ids,
                    packed=self.packed,
                    key_norms=self.key_norms,
                )
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: Path) -> AttentionRecording | None:
        """Read one; None where there is none, or one that is broken or of another version."""
        try:
            with np.load(path) as data:
                if int(data["version"]) != FORMAT_VERSION:
                    return None
                return cls(data["token_ids"], data["packed"], data["key_norms"])
        except (OSError, KeyError, ValueError, zipfile.BadZipFile, EOFError, TraceError):
            return None


def _unusable(rule: str) -> TraceError:
    return TraceError(
        where="attention recording", rule=rule, remedy="Delete it; it is recorded again when it is needed."
    )
