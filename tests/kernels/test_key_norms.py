"""key_norms against a direct norm, by every implementation on the host."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memdecay_kernels import KeyLayout, key_norms
from tests.kernels.test_attention_mass import LAYOUTS


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    layout_name=st.sampled_from([*LAYOUTS, None]),
    page=st.sampled_from([16, 32, 48]),
    head_dim=st.sampled_from([2, 5, 8, 64]),
    kv_heads=st.integers(1, 3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    magnitude=st.sampled_from([0.0, 1e-3, 1.0, 300.0]),
    pages=st.lists(st.integers(0, 4), max_size=6),
    transposed=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_it_adds_the_mean_norm_of_the_heads(
    implementation, layout_name, page, head_dim, kv_heads, dtype, magnitude, pages, transposed, seed
):
    if layout_name == "pairs" and head_dim % 2:
        head_dim += 1
    generator = torch.Generator().manual_seed(seed)
    keys = (torch.randn(5, kv_heads, page, head_dim, generator=generator) * magnitude).to(dtype)
    layout = LAYOUTS[layout_name](page, head_dim) if layout_name else None
    cache = keys if layout is None else layout.pack(keys)
    if transposed:  # heads outermost in memory
        cache = cache.transpose(0, 1).contiguous().transpose(0, 1)
    before = cache.clone()
    index = torch.tensor(pages, dtype=torch.int64)
    start = torch.rand(len(pages), page, generator=generator)
    out = start.clone()
    assert key_norms(cache, layout, index, out=out) is out
    expected = start + keys[index].double().norm(dim=-1).mean(1).float()
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(key_norms(cache, layout, index), expected - start, rtol=1e-5, atol=1e-5)
    assert torch.equal(cache, before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pages": torch.tensor([5])}, "pages 5 to 5 are not among 5"),
        ({"pages": torch.tensor([-1])}, "pages -1"),
        ({"pages": torch.tensor([1], dtype=torch.int32)}, "pages"),
        ({"out": torch.zeros(1, 32)}, "out"),
        ({"out": torch.zeros(1, 32)[:, ::2]}, "contiguous"),
        ({"layout": KeyLayout.row_major(16, 4)}, "do not fit"),
    ],
)
def test_what_does_not_fit_is_refused(implementation, change, message):
    arguments = {"layout": KeyLayout.row_major(16, 8), "pages": torch.tensor([1]), **change}
    with pytest.raises(ValueError, match=message):
        key_norms(torch.randn(5, 2, 128), arguments.pop("layout"), arguments.pop("pages"), **arguments)
