"""Unpacking by strides is unpacking by index, for every layout that engines use and for those that none does."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memdecay_kernels import KeyLayout
from memdecay_kernels.layouts import find_box


def boxed(page: int, head_dim: int, token_cut: int, dim_cut: int, order: list[int]) -> torch.Tensor:
    """Offsets of a page whose four axes (t1, t0, d1, d0) lie in memory in another order."""
    sizes = [page // token_cut, token_cut, head_dim // dim_cut, dim_cut]
    place = torch.arange(page * head_dim).view([sizes[axis] for axis in order])
    return place.permute([order.index(axis) for axis in range(4)]).reshape(page, head_dim)


boxes = st.builds(
    boxed,
    page=st.sampled_from([16, 32]),
    head_dim=st.sampled_from([4, 12, 64]),
    token_cut=st.sampled_from([1, 2, 16]),
    dim_cut=st.sampled_from([1, 2, 4]),
    order=st.permutations([0, 1, 2, 3]),
)


@given(boxes, st.sampled_from([torch.bfloat16, torch.float16, torch.float32]), st.booleans())
def test_a_box_unpacks_as_its_index_says(offsets, dtype, sliced):
    layout = KeyLayout(offsets, "box")
    assert layout.box is not None
    packed = torch.arange(3 * 2 * offsets.numel()).remainder(251).view(3, 2, -1).to(dtype)
    if sliced:  # cells as they lie in a cache: with values behind the keys
        packed = torch.cat([packed, packed], dim=-1)[..., : offsets.numel()]
    unpacked = layout.unpack(packed)
    assert torch.equal(unpacked, packed[..., offsets.reshape(-1)].view(3, 2, *offsets.shape))
    assert unpacked.is_contiguous()
    assert torch.equal(layout.pack(unpacked), packed)


@pytest.mark.parametrize("seed", range(5))
def test_a_layout_that_is_no_box_is_unpacked_by_index(seed):
    offsets = torch.randperm(16 * 8, generator=torch.Generator().manual_seed(seed)).view(16, 8)
    assert find_box(offsets) is None
    packed = torch.randn(4, offsets.numel())
    assert torch.equal(KeyLayout(offsets, "none").unpack(packed), packed[:, offsets.reshape(-1)].view(4, 16, 8))


def test_one_swapped_pair_is_no_box():
    offsets = KeyLayout.row_major(16, 8).offsets.clone()
    offsets[3, 2], offsets[9, 5] = offsets[9, 5].clone(), offsets[3, 2].clone()
    assert find_box(offsets) is None
