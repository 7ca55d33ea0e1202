"""The compiled kernels that come with the package: made from these sources, complete, no register spilled."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from memdecay_kernels.cuda.archive import KernelArchive
from memdecay_kernels.cuda.build import ARCHITECTURES, PTX, compile_kernels
from memdecay_kernels.cuda.errors import CudaBuildError
from memdecay_kernels.cuda.nvrtc import Nvrtc
from memdecay_kernels.cuda.resources import KernelResources, parse_resources
from memdecay_kernels.cuda.sources import source_digest, source_files
from tests.kernels.cuda_emulator.emulated import HERE

REGISTERS_OF_A_BLOCK = 65536
LARGEST_BLOCK = 256  # of these kernels

SPILLING = b"""
extern "C" __global__ void __launch_bounds__(1024, 2) many_values(float* at) {
    float held[96];
    for (int i = 0; i < 96; ++i) held[i] = at[i * 1024 + threadIdx.x];
    __syncthreads();
    for (int round = 0; round < 9; ++round)
        for (int i = 0; i < 96; ++i) held[i] = held[i] * held[(i + 41) % 96] + held[(i + 13) % 96];
    for (int i = 0; i < 96; ++i) at[i * 1024 + threadIdx.x] = held[i];
}
"""


@pytest.fixture(scope="module")
def archive() -> KernelArchive:
    return KernelArchive.read()


@pytest.fixture(scope="module")
def nvrtc() -> Nvrtc:
    return Nvrtc()


def test_the_archive_belongs_to_the_sources(archive):
    assert archive.source_digest == source_digest(source_files()), "run: python -m memdecay_kernels.cuda.build"
    assert archive.nvrtc_version == "12.9"
    assert set(archive.code) == {*ARCHITECTURES, PTX}
    assert set(archive.resources) == set(ARCHITECTURES)
    assert all(archive.code[target].startswith(b"\x7fELF") for target in ARCHITECTURES)
    assert b".target sm_80" in archive.code[PTX]


def test_every_architecture_has_every_kernel_and_the_emulator_runs_them_all(archive):
    emulated = set(re.findall(r"EMULATED\((\w+)\)", (HERE / "kernels.cpp").read_text()))
    assert emulated
    for target in ARCHITECTURES:
        assert set(archive.resources[target]) == emulated
    assert set(re.findall(r"\.entry (\w+)", archive.code[PTX].decode())) == emulated


@pytest.mark.parametrize("target", ARCHITECTURES)
def test_no_kernel_spills_registers_or_needs_local_memory(archive, target):
    for kernel, found in archive.resources[target].items():
        assert (found.spill_store_bytes, found.spill_load_bytes, found.stack_bytes) == (0, 0, 0), kernel
        assert found.registers * LARGEST_BLOCK <= REGISTERS_OF_A_BLOCK, kernel


def test_a_spill_would_be_seen(nvrtc):
    log = nvrtc.compile({"many.cu": SPILLING}, "many.cu", "sm_90").log
    found = parse_resources(log)["many_values"]
    assert found.spill_store_bytes > 0
    assert found.spill_load_bytes > 0


def test_the_archives_code_is_what_the_compiler_makes_of_the_sources(archive):
    made = compile_kernels(("sm_90",))
    assert made.code["sm_90"] == archive.code["sm_90"]
    assert made.resources["sm_90"] == archive.resources["sm_90"]


def test_a_refusal_of_the_compiler_says_where_and_why(nvrtc):
    with pytest.raises(CudaBuildError, match=r"(?s)for sm_90: it refused the kernels: .*nonsense"):
        nvrtc.compile({"bad.cu": b"nonsense;"}, "bad.cu", "sm_90")


def test_the_sources_include_nothing_but_themselves():
    files = source_files()
    for name, content in files.items():
        for included in re.findall(rb'#include\s+[<"]([^>"]+)[>"]', content):
            assert included.decode() in files or included == b"emulator.h", name


def test_a_log_without_an_account_is_refused():
    with pytest.raises(ValueError, match="no account of 'lost'"):
        parse_resources("ptxas info : Compiling entry function 'lost' for 'sm_90'\n")


def test_an_archive_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "kernels.tar.xz"
    resources = {"sm_90": {"kernel": KernelResources(32, 512, 0, 0, 0)}}
    written = KernelArchive({"sm_90": b"\0code", "compute_80": b"text"}, "digest", "12.9", resources)
    written.write(path)
    assert KernelArchive.read(path) == written
    first = path.read_bytes()
    replace(written, code=dict(reversed(written.code.items()))).write(path)
    assert path.read_bytes() == first


@pytest.mark.parametrize("damage", ["missing", "cut", "not_an_archive"])
def test_a_damaged_archive_is_refused_with_the_remedy(tmp_path, damage):
    path = tmp_path / "kernels.tar.xz"
    if damage != "missing":
        KernelArchive({"sm_90": b"code" * 99}, "digest", "12.9", {}).write(path)
        path.write_bytes(path.read_bytes()[:60] if damage == "cut" else b"text")
    with pytest.raises(CudaBuildError, match=r"python -m memdecay_kernels\.cuda\.build"):
        KernelArchive.read(path)
