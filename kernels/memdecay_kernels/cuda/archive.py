"""The compiled kernels as one file of the package: a cubin for each architecture, PTX, and a manifest.

A solid ``tar.xz``: the cubins of neighbouring architectures are nearly the same, and so cost little. The manifest
names the sources that they were made from; an archive of other sources is not used.
"""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from memdecay_kernels.cuda.errors import CudaBuildError
from memdecay_kernels.cuda.resources import KernelResources

ARCHIVE = Path(__file__).with_name("kernels.tar.xz")
_MANIFEST = "manifest.json"
_SCHEMA = 1


@dataclass(frozen=True)
class KernelArchive:
    """Compiled kernels."""

    code: Mapping[str, bytes]
    """By target: cubins by "sm_90" and the like, PTX by "compute_80"."""
    source_digest: str
    """`source_digest` of the sources."""
    nvrtc_version: str
    """As "12.9"."""
    resources: Mapping[str, Mapping[str, KernelResources]]
    """By target (cubins only) and kernel."""

    def write(self, path: Path = ARCHIVE) -> None:
        """Write the file; equal archives give equal bytes."""
        manifest = {
            "schema_version": _SCHEMA,
            "source_digest": self.source_digest,
            "nvrtc_version": self.nvrtc_version,
            "resources": {
                target: {kernel: found._asdict() for kernel, found in sorted(kernels.items())}
                for target, kernels in sorted(self.resources.items())
            },
        }
        files = {_MANIFEST: json.dumps(manifest, indent=1).encode(), **dict(sorted(self.code.items()))}
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
        path.write_bytes(lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME))

    @classmethod
    def read(cls, path: Path = ARCHIVE) -> KernelArchive:
        """Read the file.

        Raises:
            CudaBuildError: it is missing, damaged, or of an unknown form.
        """
        try:
            with tarfile.open(fileobj=io.BytesIO(lzma.decompress(path.read_bytes()))) as tar:
                files = {member.name: _content(tar, member) for member in tar.getmembers()}
            manifest = json.loads(files.pop(_MANIFEST))
            if manifest["schema_version"] != _SCHEMA:
                raise ValueError(f"schema_version {manifest['schema_version']}, not {_SCHEMA}")
            resources = {
                target: {kernel: KernelResources(**found) for kernel, found in kernels.items()}
                for target, kernels in manifest["resources"].items()
            }
            return cls(files, manifest["source_digest"], manifest["nvrtc_version"], resources)
        except (OSError, EOFError, lzma.LZMAError, tarfile.TarError, KeyError, TypeError, ValueError) as error:
            raise CudaBuildError(
                f"compiled kernels '{path.name}'",
                f"the file cannot be read: {type(error).__name__}: {error}",
                "Make it again with: python -m memdecay_kernels.cuda.build.",
            ) from error


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    if file is None:
        raise ValueError(f"'{member.name}' is no file")
    return file.read()
