"""Which parts serve which platform, and what is refused there, with vLLM's platform replaced."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest
import vllm.platforms
from vllm import envs
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from memdecay_adapters.engine.arguments import build_engine_args
from memdecay_adapters.engine.gpu_support import check_gpu_supported
from memdecay_adapters.engine.platform_parts import CPU, CUDA, clear_backends, platform_parts, usable_parts
from memdecay_adapters.engine.settings import EngineSettings
from memdecay_adapters.engine.support import check_environment
from memdecay_agents import MemDecayConfig
from memdecay_agents.errors import ConfigError, UnsupportedError

_WORKERS = [parts.worker_cls.rsplit(".", 1)[0] for parts in (CPU, CUDA)]


@pytest.fixture
def on(monkeypatch):
    """Replace vLLM's current platform by one of a name.

    What vLLM imports by that name must be imported before: it would keep the replacement for the whole process.
    """
    for module in ("vllm.engine.arg_utils", "vllm.v1.engine.llm_engine", *_WORKERS):
        importlib.import_module(module)

    def replace(name):
        platform = SimpleNamespace(
            is_cpu=lambda: name == "cpu", is_cuda=lambda: name == "cuda", device_name=name, device_type=name
        )
        monkeypatch.setattr(vllm.platforms, "current_platform", platform)

    return replace


@pytest.mark.parametrize(("name", "parts"), [("cpu", CPU), ("cuda", CUDA)])
def test_the_platform_chooses(on, name, parts):
    on(name)
    assert platform_parts() is parts
    check_environment()


@pytest.mark.parametrize("name", ["rocm", "xpu", "tpu"])
def test_other_platforms_are_refused(on, name):
    on(name)
    with pytest.raises(UnsupportedError, match=f"{name}.*extra 'cpu'"):
        usable_parts(allow_untested_gpu=True)


def test_cuda_wants_the_users_word_and_the_cpu_does_not(on):
    on("cuda")
    with pytest.raises(UnsupportedError, match=r"never been run on a GPU.*allow_untested_gpu=True"):
        usable_parts(allow_untested_gpu=False)
    assert usable_parts(allow_untested_gpu=True) is CUDA
    on("cpu")
    assert usable_parts(allow_untested_gpu=False) is CPU


def test_the_v2_runner_is_refused_on_the_cpu_only(on, monkeypatch):
    envs.disable_envs_cache()  # an engine that ran before in this process had vLLM remember its environment
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    on("cuda")
    check_environment()
    on("cpu")
    with pytest.raises(UnsupportedError, match="VLLM_USE_V2_MODEL_RUNNER=0"):
        check_environment()


@pytest.mark.parametrize("parts", [CPU, CUDA])
def test_the_named_worker_and_backend_exist(parts):
    module, name = parts.worker_cls.rsplit(".", 1)
    worker = getattr(importlib.import_module(module), name)
    assert worker.builder_class.__name__.startswith("MemDecay")
    try:
        object.__new__(worker)._register_backend()
        backend = AttentionBackendEnum[parts.attention_backend]
        assert backend.is_overridden()
        assert backend.get_class().get_builder_cls() is worker.builder_class
    finally:
        clear_backends()
    assert not backend.is_overridden()


# ---- engine arguments


def arguments(**engine_args):
    settings = EngineSettings(config=MemDecayConfig(), allow_untested_gpu=True)
    return build_engine_args("model", settings, engine_args)


def test_arguments_on_cuda(on):
    on("cuda")
    made = arguments()
    assert made.worker_cls == CUDA.worker_cls
    assert made.async_scheduling is False
    assert made.attention_backend == "FLASH_ATTN"
    assert made.kv_cache_memory_bytes is None
    assert arguments(kv_cache_memory_bytes=2**30).kv_cache_memory_bytes == 2**30
    assert arguments(async_scheduling=None, attention_backend=None).async_scheduling is False
    assert arguments(attention_backend=AttentionBackendEnum.FLASH_ATTN).attention_backend == "FLASH_ATTN"


def test_arguments_on_the_cpu_are_left_to_vllm(on):
    on("cpu")
    made = arguments()
    assert made.worker_cls == CPU.worker_cls
    assert made.async_scheduling is None
    assert made.attention_backend is None
    assert made.kv_cache_memory_bytes == 2**30


@pytest.mark.parametrize("backend", ["FLASHINFER", AttentionBackendEnum.TRITON_ATTN])
def test_another_attention_backend_is_refused_on_cuda(on, backend):
    on("cuda")
    with pytest.raises(ConfigError, match=r"attention_backend.*only 'FLASH_ATTN' is served"):
        arguments(attention_backend=backend)


# ---- the complete configuration, as the worker sees it


def config(*, allowed=True, **changes):
    values = {
        "async_scheduling": False, "backend": AttentionBackendEnum.FLASH_ATTN, "backend_per_kind": {},
        "use_ubatching": False, "kv_sharing_fast_prefill": False, "enable_sleep_mode": False, "model": "m", **changes,
    }  # fmt: skip
    everything = SimpleNamespace(**values)
    settings = EngineSettings(config=MemDecayConfig(), allow_untested_gpu=allowed)
    return SimpleNamespace(
        additional_config=settings.to_additional_config(), attention_config=everything, parallel_config=everything,
        scheduler_config=everything, cache_config=everything, model_config=everything,
    )  # fmt: skip


def test_a_configuration_without_anything_unsupported_passes():
    check_gpu_supported(config())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"allowed": False}, "allow_untested_gpu=True"),
        ({"async_scheduling": True}, "Set async_scheduling=False"),
        ({"backend": AttentionBackendEnum.FLASHINFER}, "FLASHINFER.*Set attention_backend='FLASH_ATTN'"),
        ({"backend": None}, "chosen by vLLM.*Set attention_backend='FLASH_ATTN'"),
        ({"backend_per_kind": {"full_attention": AttentionBackendEnum.FLASHINFER}}, "backend_per_kind unset"),
        ({"use_ubatching": True}, "enable_dbo"),
        ({"kv_sharing_fast_prefill": True}, "kv_sharing_fast_prefill unset"),
        ({"enable_sleep_mode": True}, "enable_sleep_mode unset"),
    ],
)
def test_each_unsupported_option_is_refused_with_what_to_change(changes, message):
    with pytest.raises(UnsupportedError, match=message):
        check_gpu_supported(config(**changes))


def test_the_options_that_are_checked_exist_in_vllm():
    from vllm.config import AttentionConfig, CacheConfig, ModelConfig, ParallelConfig, SchedulerConfig
    from vllm.engine.arg_utils import EngineArgs

    assert {"backend", "backend_per_kind"} <= set(AttentionConfig.__dataclass_fields__)
    assert "kv_sharing_fast_prefill" in CacheConfig.__dataclass_fields__
    assert "enable_sleep_mode" in ModelConfig.__dataclass_fields__
    assert "async_scheduling" in SchedulerConfig.__dataclass_fields__
    assert isinstance(ParallelConfig.use_ubatching, property)
    for parts in (CPU, CUDA):
        assert {*parts.defaults, *parts.fixed} <= set(EngineArgs.__dataclass_fields__)
