"""key_norms: how long the keys of some pages are.

Small norms mark the tokens that attention returns to (Devoto et al., arXiv 2406.11430).
"""

from __future__ import annotations

import torch

from memdecay_kernels.checks import check_tensor
from memdecay_kernels.implementations import native_for
from memdecay_kernels.layouts import KeyLayout
from memdecay_kernels.mass import FLOATS
from memdecay_kernels.reference import norms as reference


def key_norms(
    key_cache: torch.Tensor, layout: KeyLayout | None, pages: torch.Tensor, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Euclidean norm of each key, mean over the key heads; rotary embedding does not change it.

    Args:
        key_cache: the pool's keys, as for `attention_mass`.
        layout: how a page's keys are packed; None: token after token.
        pages: int64 ``[N]``: page ids.
        out: float32 ``[N, page_size]``, contiguous, where the keys are: added to, as for the sum over layers; by
            default new zeros.

    Returns:
        ``out``.

    Raises:
        ValueError: shapes or dtypes that do not fit together, or (on the host) a page that is not in the pool.
    """
    check_tensor("key_cache", key_cache, FLOATS, (None, None, None) if layout is not None else (None,) * 4)
    check_tensor("pages", pages, (torch.int64,), (None,))
    page_size = layout.page_size_tokens if layout is not None else key_cache.shape[2]
    if layout is not None and key_cache.shape[2] != page_size * layout.head_dim:
        raise ValueError(f"cells of {key_cache.shape[2]} elements do not fit {page_size} keys of {layout.head_dim}")
    if out is None:
        out = key_cache.new_zeros(pages.numel(), page_size, dtype=torch.float32)
    check_tensor("out", out, (torch.float32,), (pages.numel(), page_size))
    if not out.is_contiguous():
        raise ValueError("out has to be contiguous")
    if pages.device.type == "cpu" and pages.numel() and not 0 <= int(pages.min()) <= int(pages.max()) < len(key_cache):
        raise ValueError(f"pages {int(pages.min())} to {int(pages.max())} are not among {len(key_cache)}")
    native = native_for("key_norms", key_cache.device)
    if native is None or not native.key_norms(key_cache, layout, pages, out):
        reference.key_norms(key_cache, layout, pages, out)
    return out
