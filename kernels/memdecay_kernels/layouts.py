"""Where a page keeps the key of token ``t``: the packed layouts of key caches, as permutations.

Serving engines store keys in the order that their attention kernel reads fastest: column-major for
vector units, interleaved pairs for matrix units. A `KeyLayout` names the place of every element, so that
one definition of attention mass serves them all. `recover_key_layout` finds it by writing known keys
through the engine's own cache writer and looking where they land, which fails loudly when an engine
changes its layout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

_PAIRS = {torch.bfloat16: torch.int32, torch.float16: torch.int32}
TILE_TOKENS = 16
_DIGIT = 16  # exactly representable, with its neighbours, in every float type a key cache uses


class Box(NamedTuple):
    """A page as four axes: token ``t1 * sizes[1] + t0``, dimension ``d1 * sizes[3] + d0``."""

    sizes: tuple[int, int, int, int]
    strides: tuple[int, int, int, int]


@dataclass(frozen=True)
class KeyLayout:
    """The place of each key element inside the key part of one (page, head) cell.

    Attributes:
        offsets: int64 ``[page_size_tokens, head_dim]``; element (t, d) lies at this flat offset. A
            permutation of ``range(page_size_tokens * head_dim)``.
        name: what to call it in messages ("row_major", "amx", ...).
    """

    offsets: torch.Tensor
    name: str

    def __post_init__(self) -> None:
        """Check that no element has a negative place.

        Raises:
            ValueError: the offsets are no int64 ``[page_size_tokens, head_dim]`` of places from 0 on.
        """
        if self.offsets.dtype is not torch.int64 or self.offsets.dim() != 2 or int(self.offsets.min()) < 0:
            raise ValueError(f"layout {self.name!r}: offsets have to be int64 [page_size, head_dim], from 0 on")

    @property
    def page_size_tokens(self) -> int:
        """Tokens in a page."""
        return int(self.offsets.shape[0])

    @property
    def head_dim(self) -> int:
        """Elements of one key."""
        return int(self.offsets.shape[1])

    @classmethod
    def row_major(cls, page_size_tokens: int, head_dim: int) -> KeyLayout:
        """The plain layout: token after token."""
        flat = torch.arange(page_size_tokens * head_dim)
        return cls(flat.view(page_size_tokens, head_dim), "row_major")

    @cached_property
    def box(self) -> Box | None:
        """The layout as a strided box, if it is one: then unpacking is one pass over memory, with no index."""
        return find_box(self.offsets)

    @cached_property
    def offsets32(self) -> torch.Tensor:
        """The offsets as contiguous int32 on the host, for the native library."""
        return self.offsets.to(device="cpu", dtype=torch.int32).contiguous()

    @cached_property
    def last_place(self) -> int:
        """The largest offset."""
        return int(self.offsets.max())

    @cached_property
    def tile_kind(self) -> int:
        """How 16 neighbouring tokens lie: 0 anywhere, 1 in columns, 2 in pairs of dimensions."""
        return find_tile_kind(self.offsets)

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """Undo the packing: ``[..., page_size * head_dim]`` to contiguous ``[..., page_size, head_dim]``."""
        shape = (*packed.shape[:-1], *self.offsets.shape)
        if not packed.numel():
            return packed.reshape(shape)
        if self.box is None:
            return packed[..., self.offsets.reshape(-1)].reshape(shape)
        cells = packed.contiguous()
        (t1, t0, d1, d0), (s1, s0, r1, r0) = self.box
        pair = _PAIRS.get(cells.dtype)
        if pair is not None and d1 > 1 and d0 == 2 and r0 == 1 and not (s1 | s0 | r1 | int(cells.storage_offset())) % 2:
            # two neighbouring 16-bit numbers move as one
            halves = cells.view(pair).as_strided(
                (*packed.shape[:-1], t1, t0, d1), (*(n // 2 for n in cells.stride()[:-1]), s1 // 2, s0 // 2, r1 // 2)
            )
            return halves.contiguous().view(cells.dtype).view(shape)
        strided = cells.as_strided((*packed.shape[:-1], t1, t0, d1, d0), (*cells.stride()[:-1], s1, s0, r1, r0))
        return strided.reshape(shape).contiguous()

    def pack(self, keys: torch.Tensor) -> torch.Tensor:
        """Pack keys ``[..., page_size, head_dim]`` to ``[..., page_size * head_dim]``."""
        packed = torch.empty(*keys.shape[:-2], self.offsets.numel(), dtype=keys.dtype)
        packed[..., self.offsets.reshape(-1)] = keys.flatten(-2)
        return packed


def find_box(offsets: torch.Tensor) -> Box | None:
    """Write a layout as a box with four strides: tokens and dimensions each cut once; None: it is none.

    Args:
        offsets: int64 ``[page_size_tokens, head_dim]``, see `KeyLayout`.
    """
    tokens, dims = offsets.shape
    if int(offsets[0, 0]) != 0:
        return None
    for token_cut in _divisors(tokens):
        for dim_cut in _divisors(dims):
            sizes = (tokens // token_cut, token_cut, dims // dim_cut, dim_cut)
            strides = (
                int(offsets[token_cut % tokens, 0]), int(offsets[1 % token_cut, 0]),
                int(offsets[0, dim_cut % dims]), int(offsets[0, 1 % dim_cut]),
            )  # fmt: skip
            made = torch.zeros(sizes, dtype=torch.int64)
            for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
                made += (torch.arange(size) * stride).view([-1 if at == axis else 1 for at in range(4)])
            if torch.equal(made.view(tokens, dims), offsets):
                return Box(sizes, strides)
    return None


def find_tile_kind(offsets: torch.Tensor) -> int:
    """How each tile of 16 tokens of a page lies in memory; see ``TileKind`` in ``native/src/api.h``.

    Args:
        offsets: int64 ``[page_size_tokens, head_dim]``, see `KeyLayout`.
    """
    tokens, dims = offsets.shape
    if tokens % TILE_TOKENS or dims % 2:
        return 0
    tiles = offsets.cpu().view(-1, TILE_TOKENS, dims)
    first = tiles[:1, :1]
    same_everywhere = torch.equal(tiles[:, :1] - tiles[:, :1, :1], (first - first[..., :1]).expand(len(tiles), 1, dims))
    if not same_everywhere or int(first[0, 0, 0]) != 0:
        return 0
    place = torch.arange(TILE_TOKENS)[None, :, None]
    if torch.equal(tiles - tiles[:, :1], place.expand_as(tiles)):
        return 1
    odd_behind_even = torch.equal(tiles[..., 1::2], tiles[..., ::2] + 1)
    return 2 if odd_behind_even and torch.equal(tiles - tiles[:, :1], (2 * place).expand_as(tiles)) else 0


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(number, 0, -1) if number % divisor == 0]


def recover_key_layout(
    write: Callable[[torch.Tensor], torch.Tensor], page_size_tokens: int, head_dim: int, name: str
) -> KeyLayout:
    """Find a layout by writing known keys and looking where they land.

    Args:
        write: writes keys, float32 ``[page_size_tokens, head_dim]``, through the engine's cache writer
            and returns the raw key part of the page, ``[page_size_tokens * head_dim]``, any float type.
        page_size_tokens: tokens in a page.
        head_dim: elements of one key.
        name: the layout's name in messages.

    Raises:
        ValueError: what came back is no permutation of what was written, so that the layout is unknown.
    """
    index = torch.arange(page_size_tokens * head_dim).view(page_size_tokens, head_dim)
    landed = torch.zeros(page_size_tokens * head_dim, dtype=torch.int64)
    scale = 1
    while scale < index.numel():
        digit = (index // scale) % _DIGIT
        raw = write((digit + 1).float()).reshape(-1).float() - 1
        landed += raw.round().to(torch.int64) * scale
        scale *= _DIGIT
    if not torch.equal(landed.sort().values, index.reshape(-1)):
        raise ValueError(
            f"key layout {name!r} (page {page_size_tokens}, head_dim {head_dim}): the cache writer "
            "returned values that are no permutation of the keys written"
        )
    offsets = torch.empty_like(landed)
    offsets[landed] = torch.arange(landed.numel())
    return KeyLayout(offsets.view(page_size_tokens, head_dim), name)
