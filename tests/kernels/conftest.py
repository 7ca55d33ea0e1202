"""Every test that takes ``implementation`` runs with each one that this processor has."""

from __future__ import annotations

import pytest

from memdecay_kernels.native import library


def runs_here(name: str) -> bool:
    if name == "reference":
        return True
    try:
        return library.load(name) is not None
    except ValueError:
        return False


@pytest.fixture(params=["reference", *library.NAMES])
def implementation(request, monkeypatch):
    """One implementation by name; tests of an instruction set that the processor lacks are skipped."""
    if not runs_here(request.param):
        pytest.skip(f"this processor or this build has no {request.param}")
    monkeypatch.setenv("MEMDECAY_KERNELS", request.param)
    return request.param
