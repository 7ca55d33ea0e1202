"""How the native library is built, found, chosen and refused."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import warnings

import pytest
import torch

from memdecay_kernels import implementation_name, implementations, select_pages
from memdecay_kernels.native import build, library, records


@pytest.fixture
def fresh():
    """Nothing loaded before the test, nothing left behind by it."""
    caches = (library._open, library._with, implementations._library, implementations._native)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def test_the_installed_library_is_built_from_these_sources():
    assert build.LIBRARY.exists(), "run `python -m memdecay_kernels.native.build`"
    assert implementation_name().startswith("native")


def test_the_best_instruction_set_is_chosen_and_others_on_request(monkeypatch):
    available = []
    for name in library.NAMES:
        try:
            library.load(name)
        except ValueError:
            continue
        available.append(name)
    assert "portable" in available
    assert implementation_name() == f"native ({available[-1]})"
    monkeypatch.setenv("MEMDECAY_KERNELS", "portable")
    assert implementation_name() == "native (portable)"
    monkeypatch.setenv("MEMDECAY_KERNELS", "reference")
    assert implementation_name() == "reference"
    monkeypatch.setenv("MEMDECAY_KERNELS", "sse9")
    with pytest.raises(ValueError, match="none of auto, reference, portable"):
        implementation_name()


def test_an_instruction_set_that_the_processor_lacks_is_refused(fresh, monkeypatch):
    real = library._open()

    class WithoutIt:
        def __getattr__(self, name):
            return (lambda _: -1) if name == "memdecay_find" else getattr(real, name)

    monkeypatch.setattr(library, "_open", lambda: WithoutIt())
    library._with.cache_clear()
    with pytest.raises(ValueError, match="this processor or this build has no avx2"):
        library.load("avx2")


@pytest.mark.parametrize("fault", ["missing", "other sources", "broken"])
def test_without_a_usable_library_the_reference_serves_with_one_warning(fresh, monkeypatch, tmp_path, fault):
    if fault == "missing":
        monkeypatch.setattr(build, "LIBRARY", tmp_path / "none.so")
    elif fault == "broken":
        (tmp_path / "broken.so").write_bytes(b"no library")
        monkeypatch.setattr(build, "LIBRARY", tmp_path / "broken.so")
    else:
        monkeypatch.setattr(build, "source_digest", lambda: "other")
    scores, evictable = torch.tensor([2.0, 1.0]), torch.tensor([True, True])
    reason = {"missing": "without its native", "other sources": "other sources", "broken": "cannot be loaded"}[fault]
    with pytest.warns(RuntimeWarning, match=f"{reason}.*native.build") as caught:
        assert select_pages(scores, evictable, 1).tolist() == [1]
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert select_pages(scores, evictable, 2).tolist() == [1, 0]
        assert implementation_name() == "reference"


def test_a_record_of_another_size_is_refused():
    record = records.SelectArgs(scores=0, evictable=0, out=0, page_count=0, count=0)
    library.load().call("select", record)
    record = (len(record) + 8).to_bytes(8, sys.byteorder) + record[8:]
    with pytest.raises(RuntimeError, match="built from other sources"):
        library.load().call("select", record)


def test_records_lie_as_the_compiler_lays_them_out(tmp_path):
    kinds = {name: kind for name, kind in vars(records).items() if isinstance(kind, records.Record)}
    ours = {name: [kind.size_bytes, *map(kind.offset_bytes, kind.names)] for name, kind in kinds.items()}
    lines = [
        f'std::printf("%zu\\n", {place});'
        for name, kind in kinds.items()
        for place in (
            f"sizeof(memdecay::{name})",
            *(f"offsetof(memdecay::{name}, {field})" for field in kind.names),
        )
    ]
    source = tmp_path / "places.cpp"
    source.write_text(f'#include <cstddef>\n#include <cstdio>\n#include "api.h"\nint main() {{ {"".join(lines)} }}\n')
    program = tmp_path / "places"
    command = [*build.find_compiler(), "-std=c++17", f"-I{build.SOURCES}", str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    theirs = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.split()
    assert [place for places in ours.values() for place in places] == list(map(int, theirs))


def test_a_record_names_all_its_fields_and_no_others():
    whole = {"scores": 0, "evictable": 0, "out": 0, "page_count": 3, "count": 1}
    assert len(records.SelectArgs(**whole)) == records.SelectArgs.size_bytes
    with pytest.raises(KeyError):
        records.SelectArgs(scores=0)
    with pytest.raises(TypeError, match="counts"):
        records.SelectArgs(**whole, counts=1)


def test_loading_it_leaves_subnormal_numbers_alone():
    code = (
        "import numpy as np; from memdecay_kernels.native import library; assert library.load() is not None;"
        "assert np.float32(1e-40) * np.float32(0.5) > 0"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_needs_no_library_that_is_not_everywhere():
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("no readelf")
    lines = subprocess.run([readelf, "-d", str(build.LIBRARY)], check=True, capture_output=True, text=True).stdout
    needed = {line.split("[")[1].rstrip("]") for line in lines.splitlines() if "(NEEDED)" in line}
    known = {"libstdc++.so.6", "libgomp.so.1", "libgcc_s.so.1", "libc.so.6", "libm.so.6", "libpthread.so.0"}
    assert needed <= known | {f"ld-linux-{platform.machine().replace('_', '-')}.so.2"}
    assert "libgomp.so.1" in needed  # one OpenMP runtime in a process: torch's, by this name


def test_a_missing_or_failing_compiler_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError, match=r"no C\+\+ compiler"):
        build.build(tmp_path / "out.so")
    failing = tmp_path / "c++-that-fails"
    failing.write_text("#!/bin/sh\necho sorry >&2\nexit 3\n")
    failing.chmod(0o755)
    with pytest.raises(build.BuildError, match=r"c\+\+-that-fails failed:\nsorry"):
        build.build(tmp_path / "out.so", compiler=[str(failing)])
    assert not (tmp_path / "out.so").exists()


def test_no_flag_that_changes_arithmetic_elsewhere():
    flags = " ".join([*build.FLAGS, *(flag for flags in build.instruction_sets("x86_64").values() for flag in flags)])
    assert not {"-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-march=native"} & set(flags.split())


@pytest.mark.slow
def test_it_compiles_for_arm64_through_the_portable_path(tmp_path):
    compiler = shutil.which("aarch64-linux-gnu-g++")
    if compiler is None:
        pytest.skip("no cross compiler (Debian's g++-aarch64-linux-gnu)")
    made = build.build(tmp_path / "arm64.so", compiler=[compiler], machine="aarch64")
    assert made.read_bytes()[18:20] == b"\xb7\x00"  # ELF machine: AArch64
