"""The launcher with a stand-in for the driver: which code it loads, what it passes on, and how it fails."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext

import pytest
import torch

from memdecay_kernels.cuda import cuda_launcher
from memdecay_kernels.cuda.archive import KernelArchive
from memdecay_kernels.cuda.build import ARCHITECTURES, PTX
from memdecay_kernels.cuda.cuda_launcher import CudaLauncher, choose_target
from memdecay_kernels.cuda.driver import Capability, Driver
from memdecay_kernels.cuda.errors import CudaArgumentError, CudaBuildError, CudaDriverError, CudaUnavailableError
from memdecay_kernels.cuda.launcher import Grid

ALL = (*ARCHITECTURES, PTX)
DEVICE = torch.device("cuda", 0)


class DriverLibrary:
    """``libcuda.so.1`` as far as the kernels use it: remembers its calls, keeps a stack of contexts."""

    def __init__(self, capability=(9, 0), failing=None):
        self.capability = capability
        self.failing = failing
        self.calls = []
        self.contexts = []
        self.loaded = None
        self.launches = []

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append(name)
            if name == self.failing:
                return 700
            handler = getattr(type(self), f"on_{name}", None)
            if handler is not None:
                handler(self, *arguments)
            return 0

        return call

    def on_cuDeviceGetAttribute(self, value, attribute, device):
        value._obj.value = self.capability[attribute.value - 75]

    def on_cuDevicePrimaryCtxRetain(self, context, device):
        context._obj.value = 0xC0

    def on_cuCtxPushCurrent_v2(self, context):
        self.contexts.append(context.value)

    def on_cuCtxPopCurrent_v2(self, context):
        self.contexts.pop()

    def on_cuModuleLoadData(self, module, code):
        assert self.contexts == [0xC0]
        module._obj.value = 0xD0
        self.loaded = ctypes.string_at(code, 4)

    def on_cuModuleGetFunction(self, function, module, name):
        assert module.value == 0xD0
        function._obj.value = 0x1000 + len(name.value)

    def on_cuGetErrorName(self, status, text):
        text._obj.value = b"CUDA_ERROR_ILLEGAL_ADDRESS"

    def on_cuLaunchKernel(self, function, *rest):
        assert self.contexts == [0xC0]
        *sizes, stream, parameters, extra = rest
        value = ctypes.cast(parameters[0], ctypes.POINTER(ctypes.c_int32))[0]
        self.launches.append((function.value, [size.value for size in sizes], stream.value, value, extra.value))


class Parameters(ctypes.Structure):
    _fields_ = (("count", ctypes.c_int32),)


@pytest.mark.parametrize(
    ("capability", "target"),
    [
        ((8, 0), "sm_80"), ((8, 6), "sm_86"), ((8, 7), "sm_86"), ((8, 9), "sm_89"), ((9, 0), "sm_90"),
        ((10, 0), "sm_100"), ((10, 3), "sm_100"), ((11, 0), "compute_80"), ((12, 0), "sm_120"), ((12, 1), "sm_120"),
        ((13, 5), "compute_80"), ((7, 5), None),
    ],
)  # fmt: skip
def test_the_newest_code_that_runs_on_a_device_is_chosen(capability, target):
    assert choose_target(Capability(*capability), ALL) == target
    assert choose_target(Capability(*capability), reversed(ALL)) == target


def test_kernels_are_loaded_once_into_torchs_context_and_launched_on_its_stream(monkeypatch):
    library = DriverLibrary()
    launcher = CudaLauncher(DEVICE, Driver(library))
    assert (launcher.target, library.loaded, library.contexts) == ("sm_90", b"\x7fELF", [])
    assert library.calls.count("cuModuleLoadData") == 1
    kernels = KernelArchive.read().resources["sm_90"]
    assert library.calls.count("cuModuleGetFunction") == library.calls.count("cuFuncGetAttribute") == len(kernels)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: type("Stream", (), {"cuda_stream": 0xE0}))
    on_device = type("OnDevice", (), {"device": DEVICE})()
    launcher.launch("select_pages", Grid(5, 2), 128, Parameters(77), [on_device])
    launcher.launch("select_pages", Grid(0), 128, Parameters(1), [])
    assert library.launches == [(0x1000 + len("select_pages"), [5, 2, 1, 128, 1, 1, 0], 0xE0, 77, None)]
    assert library.contexts == []


def test_nothing_that_waits_for_the_device_is_called():
    library = DriverLibrary()
    CudaLauncher(DEVICE, Driver(library))
    assert not [name for name in library.calls if "Synchronize" in name or "Memcpy" in name or "Alloc" in name]


@pytest.mark.parametrize(
    ("kernel", "grid", "tensor", "match"),
    [
        ("nonsense", Grid(1), None, "has no such kernel"),
        ("select_pages", Grid(1, 70_000), None, "exceeds 65535"),
        ("select_pages", Grid(1), torch.zeros(1, device="meta"), "a tensor is on meta, the kernel on cuda:0"),
    ],
)
def test_a_launch_that_cannot_be_is_refused(kernel, grid, tensor, match):
    launcher = CudaLauncher(DEVICE, Driver(DriverLibrary()))
    with pytest.raises(CudaArgumentError, match=match):
        launcher.launch(kernel, grid, 128, Parameters(1), [] if tensor is None else [tensor])


def test_a_failing_call_says_which_and_leaves_no_context_behind(monkeypatch):
    library = DriverLibrary(failing="cuLaunchKernel")
    launcher = CudaLauncher(DEVICE, Driver(library))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: type("Stream", (), {"cuda_stream": 0}))
    with pytest.raises(CudaDriverError, match=r"cuLaunchKernel: .*CUDA_ERROR_ILLEGAL_ADDRESS \(700\)"):
        launcher.launch("select_pages", Grid(1), 128, Parameters(1), [])
    assert library.contexts == []


def test_a_driver_that_does_not_start_is_refused():
    with pytest.raises(CudaUnavailableError, match="cuInit failed"):
        Driver(DriverLibrary(failing="cuInit"))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_device_that_is_none_or_not_named_is_refused(device):
    with pytest.raises(CudaArgumentError, match="it names no single CUDA device"):
        CudaLauncher(torch.device(device), Driver(DriverLibrary()))


def test_an_old_device_is_refused():
    with pytest.raises(CudaUnavailableError, match=r"compute capability is 7\.5, and the kernels need 8\.0"):
        CudaLauncher(DEVICE, Driver(DriverLibrary((7, 5))))


@pytest.mark.parametrize("fault", ["stale", "damaged"])
def test_an_archive_that_cannot_be_used_is_replaced_by_compiling(monkeypatch, fault):
    true_archive = KernelArchive.read()
    asked = []

    def read():
        if fault == "damaged":
            raise CudaBuildError("compiled kernels", "the file cannot be read", "Make it again.")
        return KernelArchive(true_archive.code, "other sources", "12.9", true_archive.resources)

    def compile_kernels(targets):
        asked.append(targets)
        return KernelArchive({targets[0]: b"made here"}, "", "12.9", {targets[0]: {"select_pages": None}})

    monkeypatch.setattr(cuda_launcher.KernelArchive, "read", read)
    monkeypatch.setattr(cuda_launcher, "compile_kernels", compile_kernels)
    library = DriverLibrary((8, 9))
    assert CudaLauncher(DEVICE, Driver(library)).target == "sm_89"
    assert (asked, library.loaded) == ([("sm_89",)], b"made")


def test_without_archive_and_compiler_the_error_names_both(monkeypatch):
    def no_archive():
        raise CudaBuildError("compiled kernels", "the file cannot be read", "Make it again.")

    def no_compiler(targets):
        raise CudaBuildError("NVRTC", "none was found", "Install it.")

    monkeypatch.setattr(cuda_launcher.KernelArchive, "read", no_archive)
    monkeypatch.setattr(cuda_launcher, "compile_kernels", no_compiler)
    with pytest.raises(CudaBuildError, match=r"\(the file cannot be read\), and none was found\. Install it\."):
        CudaLauncher(DEVICE, Driver(DriverLibrary()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without a driver is needed")
def test_without_a_driver_importing_works_and_asking_says_what_is_missing():
    import memdecay_kernels.cuda

    with nullcontext() if _driver_is_there() else pytest.raises(CudaUnavailableError, match="driver cannot be loaded"):
        memdecay_kernels.cuda.prepare(DEVICE)


def _driver_is_there():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
