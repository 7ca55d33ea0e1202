"""Compile the kernels for every architecture: ``python -m memdecay_kernels.cuda.build``.

Takes NVRTC from its pip package and nothing else: no GPU, nvcc, host compiler or toolkit headers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from memdecay_kernels.cuda.archive import ARCHIVE, KernelArchive
from memdecay_kernels.cuda.nvrtc import Nvrtc
from memdecay_kernels.cuda.resources import parse_resources
from memdecay_kernels.cuda.sources import MAIN, source_digest, source_files

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
"""Real architectures: A100, RTX 30, RTX 40 and L4, H100 and H200, B200, RTX 50. Each also serves the later ones
of its generation."""
PTX = "compute_80"
"""The virtual architecture for the driver to translate on any other device."""


def compile_kernels(targets: Sequence[str] = (*ARCHITECTURES, PTX)) -> KernelArchive:
    """Compile for some targets.

    Raises:
        CudaBuildError: NVRTC is missing or refuses.
    """
    compiler, files = Nvrtc(), source_files()
    compiled = {target: compiler.compile(files, MAIN, target) for target in targets}
    return KernelArchive(
        code={target: found.code for target, found in compiled.items()},
        source_digest=source_digest(files),
        nvrtc_version=compiler.version,
        resources={
            target: parse_resources(found.log) for target, found in compiled.items() if target.startswith("sm_")
        },
    )


def main() -> int:
    """Write the archive into the package and print what the kernels take; 1 if any of them spills registers."""
    archive = compile_kernels()
    archive.write()
    print(f"{ARCHIVE.name}: {ARCHIVE.stat().st_size / 1024:.0f} KiB, NVRTC {archive.nvrtc_version}")
    spilling = 0
    for target, kernels in archive.resources.items():
        for kernel, found in sorted(kernels.items()):
            spills = found.spill_store_bytes + found.spill_load_bytes + found.stack_bytes
            spilling += spills > 0
            print(
                f"{target:8} {kernel:32} {found.registers:4} registers {found.shared_bytes:6} B shared {spills} B local"
            )
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main())
