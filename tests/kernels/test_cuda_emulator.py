"""The emulator notices what it is there to notice, on kernels made for it and on the product's with faults planted."""

from __future__ import annotations

import ctypes
import re

import pytest
import torch

from memdecay_kernels.cuda.attention_mass import attention_mass
from memdecay_kernels.cuda.launcher import Grid
from memdecay_kernels.cuda.page_scores import select_pages
from memdecay_kernels.cuda.page_tables import compact_table
from tests.kernels.cuda_emulator.emulated import EmulatedFault, EmulatedLauncher
from tests.kernels.cuda_emulator.mutants import MUTANTS, mutant_source


class ProbeParameters(ctypes.Structure):
    _fields_ = (
        ("in", ctypes.c_void_p), ("out", ctypes.c_void_p), ("count", ctypes.c_int32), ("which", ctypes.c_int32)
    )  # fmt: skip


def probe(launcher, kernel, threads, values, which=0, out_size=None):
    given = values.to(torch.int32).contiguous()
    out = torch.zeros(out_size or given.numel(), dtype=torch.int32)
    parameters = ProbeParameters(given.data_ptr(), out.data_ptr(), given.numel(), which)
    launcher.launch(kernel, Grid(1), threads, parameters, (given, out))
    return out


@pytest.mark.parametrize("seed", range(4))
def test_sound_kernels_pass_in_any_order_of_threads(probes, seed):
    probes.seed = seed
    values = torch.arange(64) * 7
    assert torch.equal(probe(probes, "reverse_block", 64, values), values.flip(0).int())
    assert probe(probes, "sum_warp", 32, values[:32]).tolist() == [int(values[:32].sum())] * 32


def test_lanes_exchange_as_on_the_device(probes):
    values = torch.arange(32) * 5 + 1
    up, named, votes, bits = probe(probes, "exchange_values", 32, values, out_size=128).view(4, 32)
    assert up.tolist() == values[:3].tolist() + values[:-3].tolist()
    assert named.tolist() == [int(values[7])] * 32
    assert {int(vote) & 0xFFFFFFFF for vote in votes} == {sum((v % 3 == 0) << i for i, v in enumerate(values.tolist()))}
    assert bits.tolist() == [value.bit_count() for value in values.tolist()]


@pytest.mark.parametrize(
    ("kernel", "threads", "which", "notice"),
    [
        ("reverse_block", 64, 1, r"race: thread \d+ \w+ values\[\d+\], and thread \d+ \w+ it without a barrier"),
        ("reverse_block", 64, 2, "divergence: thread .* returned"),
        ("reverse_block", 64, 3, r"out of bounds: thread 63 uses values\[64\] of 64"),
        ("reverse_block", 64, 4, "divergence: thread .* returned"),
        ("reverse_block", 64, 5, r"divergence: thread \d+ is in a barrier at .*, others in one at"),
        ("reverse_block", 64, 6, "heap-buffer-overflow"),
        ("reverse_block", 64, 7, "race"),
        ("reverse_block", 64, 8, "race"),
        ("sum_warp", 32, 1, "divergence: thread .* returned"),
        ("sum_warp", 32, 2, "divergence"),
        ("sum_warp", 32, 3, "race"),
        ("sum_warp", 32, 4, "misaligned address"),
        ("sum_warp", 32, 5, "signed integer overflow"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_planted_fault_is_noticed(probes, kernel, threads, which, notice, seed):
    probes.seed = seed
    with pytest.raises(EmulatedFault, match=notice):
        probe(probes, kernel, threads, torch.arange(threads), which)


def test_an_unknown_kernel_and_foreign_memory_are_refused(probes):
    with pytest.raises(EmulatedFault, match="no kernel 'nonsense'"):
        probe(probes, "nonsense", 32, torch.arange(32))
    parameters = ProbeParameters(8, 8, 1, 0)
    with pytest.raises(ValueError, match="in none of the tensors"):
        probes.launch("sum_warp", Grid(1), 32, parameters, (torch.zeros(4),))


def run_mass(launcher):
    generator = torch.Generator().manual_seed(1)
    query, keys = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((3, 18, 16), (4, 16, 2, 16)))
    table = torch.tensor([[2, 0, 3]], dtype=torch.int32)
    context, ends, windows = (torch.tensor([number], dtype=torch.int32) for number in (48, 3, 2))
    attention_mass(
        [query] * 4, [keys] * 4, table, context, ends, windows, torch.zeros(1, 70), scale=0.25, max_window=2,
        launcher=launcher,
    )  # fmt: skip


def run_mutant(mutant, launcher):
    if mutant.file == "attention_mass.cuh":
        run_mass(launcher)
    elif mutant.file == "select_pages.cuh":
        scores = torch.arange(130).float()
        select_pages(scores, torch.ones(130, dtype=torch.bool), torch.zeros(5, dtype=torch.int64), launcher=launcher)
    else:
        table, length = torch.ones(1, 300, dtype=torch.int32), torch.tensor([301 * 16], dtype=torch.int32)
        compact_table(
            table, length, 16, 0, torch.zeros_like(table), torch.zeros_like(length), None,
            empty_rows_keep_length=False, launcher=launcher,
        )  # fmt: skip


@pytest.fixture(scope="module")
def mutants(build_program):
    return build_program(mutant_source())


@pytest.mark.parametrize("number", range(len(MUTANTS)), ids=[mutant.name for mutant in MUTANTS])
def test_a_fault_planted_in_a_kernel_of_the_product_is_noticed(mutants, number):
    launcher = EmulatedLauncher(mutants, prefix=f"{number}.")
    with pytest.raises(EmulatedFault, match=re.escape(MUTANTS[number].notice)):
        run_mutant(MUTANTS[number], launcher)


def test_the_same_runs_pass_without_a_fault(emulator):
    for file in {mutant.file: mutant for mutant in MUTANTS}.values():
        run_mutant(file, emulator)
