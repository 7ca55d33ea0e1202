"""Workers in processes, the core in a process, plain vLLM without us: the same tokens, the same plans."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from vllm import SamplingParams

from memdecay_adapters.engine import MemDecayEngine, plugin, vllm_arguments
from tests.engine.plans import plan_difference
from tests.engine.prompts import hints, ids
from tests.engine.small_vllm import CONFIG, VLLM

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
NEW_TOKENS = 12

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
def in_process(engine_house, random_llama_path):
    """The requests served by one worker in this process."""
    engine_house.close()
    with MemDecayEngine(random_llama_path, config=CONFIG, engine_args=VLLM, check_integrity=True) as engine:
        return serve(engine)


# ---- tensor parallel


def test_two_ranks_give_the_same_tokens_and_plans(in_process, no_engine, random_llama_path):
    environment, threads = dict(os.environ), torch.get_num_threads()
    arguments = {**VLLM, "tensor_parallel_size": 2}
    with MemDecayEngine(random_llama_path, config=CONFIG, engine_args=arguments, check_integrity=True) as engine:
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
    in_process, no_engine, random_llama_path, installed_plugin, monkeypatch
):
    from vllm import LLM

    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    plugin.register()  # this process may have loaded its plugins before; those of core and worker do it themselves
    arguments = vllm_arguments(CONFIG, check_integrity=True)
    arguments["kv_transfer_config"].pop("kv_connector_module_path")  # the plugin knows it by name
    extra_args = [request_hints.to_extra_args() for _, request_hints in REQUESTS]
    extra_args[1] = {"kv_transfer_params": extra_args[1]}  # as hints come in through vLLM's HTTP server
    llm = LLM(random_llama_path, **VLLM, **arguments)
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


def test_plain_vllm_without_configuration_is_untouched_by_the_plugin(no_engine, random_llama_path, installed_plugin):
    job, result = installed_plugin / "job.json", installed_plugin / "result.json"
    prompt, request_hints = REQUESTS[0]
    job.write_text(json.dumps({"model": random_llama_path, "arguments": VLLM, "prompt": prompt, "new_tokens": 2,
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
