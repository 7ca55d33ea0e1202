"""A user's own script around a vLLM that knows nothing of memdecay, run by a test in a process of its own.

    python -m tests.engine.plain_vllm_program JOB.json RESULT.json

The job: ``model``, ``arguments`` of vllm.LLM, ``prompt`` (token ids), ``new_tokens``, ``extra_args``. The engine must
be in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0): the result is what was found inside.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def what_is_inside(llm: Any) -> dict[str, Any]:
    """Names of the classes that do the work, and which of our modules this process has loaded."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    core = llm.llm_engine.engine_core.engine_core
    worker = core.model_executor.driver_worker.worker
    manager = core.scheduler.kv_cache_manager.coordinator.single_type_managers[0]
    return {
        "worker": type(worker).__qualname__,
        "backends": [group.backend.__qualname__ for groups in worker.model_runner.attn_groups for group in groups],
        "connector": core.scheduler.connector,
        "manager": type(manager).__qualname__,
        "block_size": manager.block_size,
        "known_by_name": "MemDecayConnector" in KVConnectorFactory._registry,
        "modules": sorted(name for name in sys.modules if name.split(".")[0].startswith("memdecay")),
    }


def main(job_file: str, result_file: str) -> None:
    from vllm import LLM, SamplingParams

    job = json.loads(Path(job_file).read_text())
    llm = LLM(job["model"], **job["arguments"])
    sampling = SamplingParams(max_tokens=job["new_tokens"], ignore_eos=True, extra_args=job["extra_args"])
    output = llm.generate({"prompt_token_ids": job["prompt"]}, sampling, use_tqdm=False)[0]
    result = what_is_inside(llm)
    result |= {"generated": len(output.outputs[0].token_ids), "returned": output.kv_transfer_params}
    Path(result_file).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
