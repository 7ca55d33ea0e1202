"""The element math that the CPU library, the CUDA kernels and their emulation share, against torch."""

from __future__ import annotations

import ctypes

import pytest
import torch

from memdecay_kernels.cuda.launcher import Grid

EXP, TO_BF16, FROM_BF16, TO_FP16, FROM_FP16 = range(5)
EVERY_HALF = torch.arange(2**16, dtype=torch.int32)


class Parameters(ctypes.Structure):
    _fields_ = (
        ("given", ctypes.c_void_p), ("out", ctypes.c_void_p), ("count", ctypes.c_int32), ("which", ctypes.c_int32)
    )  # fmt: skip


def apply(probes, which, bits):
    out = torch.zeros_like(bits)
    parameters = Parameters(bits.data_ptr(), out.data_ptr(), bits.numel(), which)
    probes.launch("element_function", Grid(1), 32, parameters, (bits, out))
    return out


def floats_of_every_kind() -> torch.Tensor:
    """float32 of every exponent, both signs, with mantissas that rounding has to look at closely."""
    exponents = torch.arange(256).repeat_interleave(12) << 23
    mantissas = torch.tensor([0, 1, 0xFFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x7FFFFF])
    bits = exponents | mantissas.repeat(256)
    return torch.cat([bits, bits | -(2**31)]).to(torch.int32)


@pytest.mark.parametrize(("which", "dtype"), [(FROM_BF16, torch.bfloat16), (FROM_FP16, torch.float16)])
def test_every_half_becomes_the_float_it_stands_for(probes, which, dtype):
    expected = EVERY_HALF.to(torch.int16).view(dtype).float()
    found = apply(probes, which, EVERY_HALF).view(torch.float32)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    numbers = ~expected.isnan()
    assert torch.equal(found[numbers].view(torch.int32), expected[numbers].view(torch.int32))  # the sign of zero too


@pytest.mark.parametrize(("which", "dtype"), [(TO_BF16, torch.bfloat16), (TO_FP16, torch.float16)])
def test_floats_are_rounded_to_the_nearest_half(probes, which, dtype):
    bits = floats_of_every_kind()
    expected = bits.view(torch.float32).to(dtype)
    found = apply(probes, which, bits).to(torch.int16).view(dtype)
    numbers = ~expected.isnan()
    assert torch.equal(found.isnan(), ~numbers)
    assert torch.equal(found[numbers].view(torch.int16), expected[numbers].view(torch.int16))


def test_the_exponential_is_accurate_over_its_whole_range(probes):
    x = torch.linspace(-87.3, 88.7, 40_000)
    found = apply(probes, EXP, x.view(torch.int32)).view(torch.float32).double()
    relative = (found / x.double().exp() - 1).abs().max().item()
    assert relative < 2e-7


def test_the_exponential_at_its_ends(probes):
    x = torch.tensor([0.0, -0.0, -87.4, -1e30, -float("inf"), 88.8, 1e30, float("inf"), float("nan")])
    found = apply(probes, EXP, x.view(torch.int32)).view(torch.float32)
    infinity = float("inf")
    torch.testing.assert_close(
        found, torch.tensor([1.0, 1.0, 0, 0, 0, infinity, infinity, infinity, float("nan")]), rtol=0, atol=0,
        equal_nan=True,
    )  # fmt: skip
