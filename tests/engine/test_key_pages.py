"""Pages written by vLLM's own op, read by every implementation of attention mass."""

from __future__ import annotations

import pytest
import torch

from memdecay_adapters.engine import cpu_key_layout as module
from memdecay_adapters.engine.cpu_key_layout import cpu_key_layout, probe_keys
from memdecay_agents.errors import UnsupportedError
from memdecay_kernels import attention_mass
from tests.kernels.conftest import implementation  # noqa: F401
from tests.kernels.test_attention_mass import direct_mass

ops = pytest.importorskip("vllm._custom_ops")

CASES = [
    ("amx", 32, torch.bfloat16),
    ("amx", 64, torch.bfloat16),
    ("vec", 32, torch.bfloat16),
    ("vec", 32, torch.float16),
    ("vec", 32, torch.float32),
    ("vec16", 16, torch.bfloat16),
    ("vec16", 16, torch.float32),
]


@pytest.mark.parametrize(("isa", "page", "dtype"), CASES)
@pytest.mark.parametrize(("window", "short"), [(1, 0), (16, 5)])
def test_mass_over_vllms_own_pages(implementation, isa, page, dtype, window, short):  # noqa: F811
    if isa == "amx" and not torch.cpu._is_amx_tile_supported():
        pytest.skip("this processor has no matrix unit")
    generator = torch.Generator().manual_seed(7)
    tokens, heads, kv_heads, dim = page * 5, 9, 3, 64
    keys = torch.randn(tokens, kv_heads, dim, generator=generator).to(dtype)
    query = torch.randn(window, heads, dim, generator=generator).to(dtype)
    cache = torch.zeros(6, kv_heads, page * 2, dim, dtype=dtype)
    key_cache, value_cache = cache.chunk(2, dim=2)
    order = torch.randperm(5, generator=generator) + 1
    slots = (order[:, None] * page + torch.arange(page)).flatten()
    ops.cpu_attn_reshape_and_cache(keys, torch.full_like(keys, 3.0), key_cache, value_cache, slots, isa)
    packed = cache.view(6, kv_heads, -1)[:, :, : page * dim]
    length = tokens - short
    layout = cpu_key_layout(isa, page, dim, dtype)
    mass = attention_mass(query, packed, layout, order.int()[None], torch.tensor([length]).int(), dim**-0.5)
    expected = direct_mass(query.float(), keys.float()[:length], dim**-0.5)
    torch.testing.assert_close(mass[0], expected, rtol=1e-4, atol=1e-7)


def test_the_probe_passes_here_and_notices_wrong_numbers(monkeypatch):
    probe_keys("vec", 32, 64, torch.bfloat16)
    monkeypatch.setattr(module, "attention_mass", lambda *arguments: attention_mass(*arguments) * 1.01)
    with pytest.raises(UnsupportedError, match="MEMDECAY_KERNELS=reference"):
        probe_keys("vec", 32, 64, torch.bfloat16)


def test_the_probe_notices_a_writer_that_loses_keys(monkeypatch):
    monkeypatch.setattr(module.ops, "cpu_attn_reshape_and_cache", lambda *arguments, **options: None)
    cpu_key_layout.cache_clear()
    try:
        with pytest.raises(UnsupportedError, match="no permutation"):
            probe_keys("vec", 32, 64, torch.bfloat16)
    finally:
        cpu_key_layout.cache_clear()
