"""copy_pages: whole pages between the device's pool and a host tier, or between two pools."""

from __future__ import annotations

import torch

from memdecay_kernels.checks import check_tensor
from memdecay_kernels.implementations import native_for
from memdecay_kernels.reference import pages as reference


def copy_pages(
    source: torch.Tensor, source_pages: torch.Tensor, target: torch.Tensor, target_pages: torch.Tensor
) -> None:
    """Copy whole pages, bit for bit.

    Args:
        source: ``[num_source_pages, ...]``, pages contiguous.
        source_pages: int64 ``[n]``.
        target: ``[num_target_pages, ...]`` of the same page shape and dtype; written in place.
        target_pages: int64 ``[n]``, distinct; within one cache none of them is a source page, since the order of the
            copies is nobody's to know (refused on the host).

    Raises:
        ValueError: page shapes or dtypes differ, the two index lists have different lengths, or (on the host) an
            index is out of range.
    """
    if source.shape[1:] != target.shape[1:] or source.dtype != target.dtype:
        raise ValueError(f"pages of {source.shape[1:]} {source.dtype} do not fit {target.shape[1:]} {target.dtype}")
    check_tensor("source_pages", source_pages, (torch.int64,), (None,))
    check_tensor("target_pages", target_pages, (torch.int64,), (None,))
    if source_pages.shape != target_pages.shape:
        raise ValueError(f"{source_pages.numel()} source pages for {target_pages.numel()} target pages")
    for name, cache, pages in (("source", source, source_pages), ("target", target, target_pages)):
        if pages.device.type == "cpu" and pages.numel() and not 0 <= int(pages.min()) <= int(pages.max()) < len(cache):
            raise ValueError(f"{name} pages {int(pages.min())} to {int(pages.max())} are not among {len(cache)}")
    one_cache = source.device.type == "cpu" and source.data_ptr() == target.data_ptr()
    if one_cache and bool(torch.isin(target_pages, source_pages).any()):
        raise ValueError("a page of one cache is both read and written")
    cuda = source.is_cuda or target.is_cuda
    native = native_for("copy_pages", torch.device("cuda") if cuda else source.device)
    if native is None or not native.copy_pages(source, source_pages, target, target_pages):
        reference.copy_pages(source, source_pages, target, target_pages)
