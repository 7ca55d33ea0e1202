"""key_norms, defined."""

from __future__ import annotations

import torch

from memdecay_kernels.layouts import KeyLayout


def key_norms(key_cache: torch.Tensor, layout: KeyLayout | None, pages: torch.Tensor, out: torch.Tensor) -> None:
    """See `memdecay_kernels.key_norms`; adds to ``out``."""
    cells = key_cache.index_select(0, pages.to(key_cache.device))
    keys = cells if layout is None else layout.unpack(cells)
    out += torch.linalg.vector_norm(keys, dim=-1, dtype=torch.float32).mean(1)
