"""Errors of the CUDA kernels: each says where it happened, which rule was broken and what to do next.

In the manner of ``memdecay_agents.errors``, which this package may not import.
"""

from __future__ import annotations

from typing import ClassVar


class CudaError(RuntimeError):
    """Base of the errors of this package.

    Args:
        where: the thing that was looked at ("libcuda.so.1", "kernel 'mass_of_tokens_bf16'").
        rule: the rule it breaks, with the numbers that break it.
        remedy: what the reader can do next.
    """

    code: ClassVar[str] = "cuda"

    def __init__(self, where: str, rule: str, remedy: str) -> None:
        self.where = where
        self.rule = rule
        self.remedy = remedy
        super().__init__(where, rule, remedy)

    def __str__(self) -> str:
        """The three parts as one line, with the stable code."""
        return f"{self.where}: {self.rule}. {self.remedy} [{self.code}]"


class CudaUnavailableError(CudaError):
    """No driver, no device, or none that the kernels run on."""

    code = "cuda_unavailable"


class CudaBuildError(CudaError):
    """NVRTC is missing or refused the kernels, or the archive of compiled kernels is unusable."""

    code = "cuda_build"


class CudaDriverError(CudaError):
    """A call of the driver failed."""

    code = "cuda_driver"


class CudaArgumentError(CudaError, ValueError):
    """Tensors or numbers that a kernel cannot take."""

    code = "cuda_argument"
