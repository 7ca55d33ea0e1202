"""attention_mass against a direct softmax over unpacked keys, written independently of the packed path."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memdecay_kernels import KeyLayout, attention_mass, recover_key_layout


def shuffled_layout(page: int, head_dim: int, seed: int) -> KeyLayout:
    offsets = torch.randperm(page * head_dim, generator=torch.Generator().manual_seed(seed))
    return KeyLayout(offsets.view(page, head_dim), "shuffled")


def direct_mass(query: torch.Tensor, keys: torch.Tensor, scale: float) -> torch.Tensor:
    """Per query head and query, one softmax at a time; keys ``[L, Hkv, D]``."""
    window, heads, _ = query.shape
    length, kv_heads, _ = keys.shape
    total = torch.zeros(length)
    for w in range(window):
        seen = length - (window - 1 - w)
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            logits = keys[:seen, kv_head].double() @ query[w, head].double() * scale
            total[:seen] += logits.softmax(0).float()
    return total / (window * heads)


@settings(deadline=None, max_examples=40)
@given(
    page=st.sampled_from([16, 32]),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    window=st.integers(1, 16),
    pages=st.integers(1, 6),
    missing=st.integers(0, 15),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    magnitude=st.sampled_from([0.1, 1.0, 30.0]),
    seed=st.integers(0, 10_000),
)
def test_equals_a_direct_softmax(page, kv_heads, group, window, pages, missing, dtype, magnitude, seed):
    generator = torch.Generator().manual_seed(seed)
    head_dim, pool_pages = 8, 9
    layout = shuffled_layout(page, head_dim, seed)
    page_ids = torch.randperm(pool_pages, generator=generator)[:pages]
    length = max(pages * page - missing, window)
    if length > pages * page:
        length = window = pages * page
    keys = (torch.randn(pool_pages, kv_heads, page, head_dim, generator=generator) * magnitude).to(dtype)
    query = torch.randn(window, kv_heads * group, head_dim, generator=generator).to(dtype)
    mass = attention_mass(query, layout.pack(keys), layout, page_ids, length, 0.3)
    flat = keys[page_ids].permute(0, 2, 1, 3).reshape(-1, kv_heads, head_dim)[:length]
    expected = direct_mass(query.float(), flat.float(), 0.3)
    assert mass.dtype is torch.float32
    torch.testing.assert_close(mass, expected, rtol=2e-4, atol=2e-6)
    assert mass.sum().item() == pytest.approx(1.0, abs=1e-4)


def test_max_over_heads_is_the_largest_heads_mass():
    layout = KeyLayout.row_major(16, 4)
    keys = torch.randn(2, 2, 16, 4)
    query = torch.randn(1, 4, 4)
    flat = keys.permute(0, 2, 1, 3).reshape(-1, 2, 4)
    per_head = torch.stack([direct_mass(query[:, h : h + 1], flat[:, h // 2 : h // 2 + 1], 0.5) for h in range(4)])
    mass = attention_mass(query, layout.pack(keys), layout, torch.tensor([0, 1]), 32, 0.5, head_reduce="max")
    torch.testing.assert_close(mass, per_head.amax(0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("heads", "context", "reduce", "message"),
    [(3, 16, "mean", "do not fit"), (4, 17, "mean", "does not fit"), (4, 16, "median", "neither")],
)
def test_refuses_shapes_that_do_not_fit(heads, context, reduce, message):
    layout = KeyLayout.row_major(16, 4)
    with pytest.raises(ValueError, match=message):
        attention_mass(
            torch.randn(1, heads, 4), torch.randn(2, 2, 64), layout, torch.tensor([0]), context, 1.0,
            head_reduce=reduce,
        )  # fmt: skip


@settings(deadline=None, max_examples=20)
@given(page=st.sampled_from([16, 32, 128]), head_dim=st.sampled_from([8, 64, 256]), seed=st.integers(0, 99))
def test_a_layout_is_recovered_through_the_writer_in_bfloat16(page, head_dim, seed):
    truth = shuffled_layout(page, head_dim, seed)
    found = recover_key_layout(lambda keys: truth.pack(keys.bfloat16()), page, head_dim, "secret")
    assert torch.equal(found.offsets, truth.offsets)


def test_a_writer_that_loses_keys_is_refused():
    with pytest.raises(ValueError, match="no permutation"):
        recover_key_layout(lambda keys: torch.ones(keys.numel()), 16, 8, "lossy")
