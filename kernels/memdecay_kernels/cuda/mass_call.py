"""Attention mass for layers of one shape: the rows are moved to the device once, whichever layers follow."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from memdecay_kernels.cuda.attention_mass import MAX_WINDOW, attention_mass
from memdecay_kernels.cuda.cuda_launcher import launcher_for
from memdecay_kernels.cuda.launcher import Launcher
from memdecay_kernels.layouts import KeyLayout
from memdecay_kernels.native.mass_call import MassRows

_WINDOW_ON_DEVICE = 16


class DeviceMassCall:
    """What layers have in common; see `memdecay_kernels.attention_mass` for the arguments.

    Args:
        rows: on the device, or on the host, from where they are copied. Windows that are on the device count as at
            most 16, since finding the largest would be a wait.
        query: ``[T, num_heads, head_dim]``, on the device.
        key_cache: ``[num_pages, num_kv_heads, page_size, head_dim]``.
        layout: only None is possible: token after token.
        scale: the softmax scale.
        head_reduce: "mean" or "max".
        out: float32 ``[R, M]``.
        accumulate: add to ``out``.
        launcher: by default that of the queries' device.
    """

    def __init__(
        self,
        rows: MassRows,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        layout: KeyLayout | None,
        scale: float,
        head_reduce: str,
        out: torch.Tensor,
        accumulate: bool,
        launcher: Launcher | None = None,
    ) -> None:
        self._shape = _shape(query, key_cache, layout, scale)
        self._max_window = _WINDOW_ON_DEVICE
        if rows.windows.device.type == "cpu":
            self._max_window = max(1, int(rows.windows.max())) if rows.windows.numel() else 1
        self.possible = (
            layout is None
            and query.dtype is key_cache.dtype
            and query.stride(2) == key_cache.stride(3) == 1
            and self._max_window <= MAX_WINDOW.get(head_reduce, 0)
        )
        """Whether the kernels can serve these queries and keys; if not, nothing is to be run."""
        if self.possible:
            self._rows = MassRows(*(row.to(query.device, non_blocking=True) for row in rows))
            self._launcher = launcher if launcher is not None else launcher_for(query.device)
        self._scale, self._head_reduce, self._out, self._accumulate = scale, head_reduce, out, accumulate

    batches_layers = True
    """One sequence of launches serves all layers of a step."""

    def fits(self, query: torch.Tensor, key_cache: torch.Tensor, layout: KeyLayout | None, scale: float) -> bool:
        """Whether another layer has the same shapes, strides and scale."""
        return self._shape == _shape(query, key_cache, layout, scale)

    def run(self, query: torch.Tensor, key_cache: torch.Tensor) -> None:
        """Measure one layer."""
        self.run_layers([query], [key_cache])

    def run_layers(self, queries: Sequence[torch.Tensor], key_caches: Sequence[torch.Tensor]) -> None:
        """Measure up to 64 layers in three launches; ``out`` gets the sum of their masses."""
        attention_mass(
            queries, [keys.transpose(1, 2) for keys in key_caches], *self._rows, self._out, scale=self._scale,
            max_window=self._max_window, launcher=self._launcher, head_reduce=self._head_reduce,
            accumulate=self._accumulate,
        )  # fmt: skip


def _shape(query: torch.Tensor, keys: torch.Tensor, layout: KeyLayout | None, scale: float) -> tuple[object, ...]:
    return query.shape, query.stride(), query.dtype, keys.shape, keys.stride(), keys.dtype, id(layout), scale
