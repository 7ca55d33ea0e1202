"""The tier's memory in one worker: slots of whole pages, all layers of a page together.

    segment   [slot][layer][the page as the device keeps it]      a page is one contiguous run of bytes
    slots     those of memory, in segments; behind them those of the disk, in one

Segments are made when they are first needed, so that a large limit costs nothing before it is used. Beside a GPU they
are pinned, copies run on the current stream, in order with the forward passes around them, and the host waits for the
newest one before it reads (not run on a GPU).
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence

import torch

from memdecay_adapters.engine.tier.disk_pages import disk_pages
from memdecay_adapters.engine.tier.messages import PageCopy
from memdecay_adapters.engine.tier.settings import HostTier
from memdecay_agents.errors import IntegrityError, UnsupportedError
from memdecay_kernels import copy_pages

SEGMENT_SLOTS = 64
"""Slots that are made at once."""


class HostStore:
    """Slots for the pages of one worker's part of the cache.

    Args:
        layers: the cache, ``[num_pages, num_kv_heads, page_size, 2 * head_dim]`` a layer, alike in shape, strides and
            dtype; a page is one run of memory, with heads or tokens outermost.
        tier: its bounds, and whether a CRC-32 of each page is kept and checked when the page comes back.
        ranks: that have a part of each page.

    Raises:
        UnsupportedError: layers that differ, or pages that lie apart in memory.
        ConfigError: no place on disk.
    """

    def __init__(self, layers: Sequence[torch.Tensor], tier: HostTier, ranks: int = 1) -> None:
        first = layers[0]
        if any((one.shape, one.stride(), one.dtype) != (first.shape, first.stride(), first.dtype) for one in layers):
            raise UnsupportedError(
                where="host tier",
                rule="the layers' caches differ in shape or type",
                remedy="Use a model whose attention layers are all alike, or leave host_tier out.",
            )
        strides = first.stride()
        outermost_first = sorted(range(1, first.dim()), key=lambda axis: -strides[axis])
        self._layers = [layer.permute(0, *outermost_first) for layer in layers]
        self._axes = [outermost_first.index(axis) for axis in range(1, first.dim())]
        if not self._layers[0][:1].is_contiguous():
            raise UnsupportedError(
                where="host tier",
                rule=f"pages {list(first.shape[1:])} of strides {first.stride()[1:]} are not one run of memory",
                remedy="Leave vLLM's kv_cache_layout unset, or leave host_tier out.",
            )
        self._page_shape = self._layers[0].shape[1:]
        self._segments: list[torch.Tensor] = []
        self._checksums: dict[int, int] | None = {} if tier.checksum else None
        page_bytes = self.page_bytes * ranks
        self._memory_slots, on_disk = tier.memory_pages(page_bytes), tier.disk_pages(page_bytes)
        shape = (on_disk, len(layers), *self._page_shape)
        self._disk = disk_pages(tier.disk_folder, shape, first.dtype) if on_disk else None
        self._pinned = first.is_cuda
        self._newest_copy: torch.cuda.Event | None = None

    @property
    def page_bytes(self) -> int:
        """Of one page, all layers."""
        first = self._layers[0]
        return len(self._layers) * first[0].numel() * first.element_size()

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Copy pages in order; neighbours in one direction go together.

        Raises:
            IntegrityError: a page that comes back is not what left.
        """
        for direction, run in itertools.groupby(copies, key=lambda copy: copy.direction):
            # of several writes to one place only the last one counts
            last = {copy.slot if direction == "out" else copy.block: copy for copy in run}
            self._copy_run(direction == "out", list(last.values()))

    def _copy_run(self, out: bool, copies: list[PageCopy]) -> None:
        by_segment: dict[int, list[PageCopy]] = {}
        for copy in copies:
            by_segment.setdefault(self._place(copy.slot)[0], []).append(copy)
        for number, part in by_segment.items():
            segment = self._segment(number)
            if not out:
                self._check(part)
            blocks = torch.tensor([copy.block for copy in part])
            slots = torch.tensor([self._place(copy.slot)[1] for copy in part])
            for index, layer in enumerate(self._layers):
                if out:
                    copy_pages(layer, blocks, segment[:, index], slots)
                else:
                    copy_pages(segment[:, index], slots, layer, blocks)
            if self._pinned:
                self._newest_copy = torch.cuda.Event()
                self._newest_copy.record()
            if out and self._checksums is not None:
                self._checksums.update({copy.slot: self._checksum(copy.slot) for copy in part})

    def cells(self, slots: Sequence[int], layer: int, kv_head: int) -> torch.Tensor:
        """What one head has in some pages, as the device packs it: ``[len(slots), page_size, 2 * head_dim]``."""
        return torch.stack([self.page(slot)[layer, kv_head] for slot in slots])

    def page(self, slot: int) -> torch.Tensor:
        """One page, ``[layers, num_kv_heads, page_size, 2 * head_dim]``, a view."""
        return self._slot(slot).permute(0, *(1 + axis for axis in self._axes))

    def _slot(self, slot: int) -> torch.Tensor:
        """One page in the order of memory, after what the device still writes there."""
        if self._newest_copy is not None:
            self._newest_copy.synchronize()
            self._newest_copy = None
        number, place = self._place(slot)
        return self._segment(number)[place]

    def _place(self, slot: int) -> tuple[int, int]:
        """Number of the segment, -1 on disk, and place in it."""
        if slot >= self._memory_slots:
            return -1, slot - self._memory_slots
        return divmod(slot, SEGMENT_SLOTS)

    def _segment(self, number: int) -> torch.Tensor:
        if number < 0:
            assert self._disk is not None
            return self._disk
        while len(self._segments) <= number:
            slots = min(SEGMENT_SLOTS, self._memory_slots - len(self._segments) * SEGMENT_SLOTS)
            shape = (slots, len(self._layers), *self._page_shape)
            self._segments.append(torch.empty(shape, dtype=self._layers[0].dtype, pin_memory=self._pinned))
        return self._segments[number]

    def _checksum(self, slot: int) -> int:
        return zlib.crc32(self._slot(slot).reshape(-1).view(torch.uint8).numpy().tobytes())

    def _check(self, copies: Sequence[PageCopy]) -> None:
        for copy in copies if self._checksums is not None else ():
            if self._checksums is not None and self._checksums.get(copy.slot) != self._checksum(copy.slot):
                raise IntegrityError(
                    where=f"host tier, slot {copy.slot}",
                    rule="the page is not what was copied there",
                    remedy="Check the machine's memory; if it is sound this is a fault of the engine: please report "
                    "it.",
                )
