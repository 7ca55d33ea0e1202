"""Build vLLM's engine inside this process, and take it down so that another can follow."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from memdecay_adapters.engine.arguments import own_errors
from memdecay_adapters.engine.worker_processes import environment_of_workers, errors_of_workers

if TYPE_CHECKING:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine


def build_llm_engine(arguments: EngineArgs) -> LLMEngine:
    """vLLM's engine with the core in this process, whatever VLLM_ENABLE_V1_MULTIPROCESSING says.

    A single worker is in this process too: in another one it would start through ``multiprocessing`` and break
    user scripts that have no ``__main__`` guard. On a CPU vLLM would otherwise choose a worker process, for the
    sake of thread binding; in this process the number of threads is OMP_NUM_THREADS, or all cores. The workers
    of a tensor-parallel engine are processes, and its script needs the guard.

    Raises:
        ConfigError, ModelError: see `own_errors`.
        UnsupportedError: see `check_supported` and the worker.
        EngineError: one of several worker processes did not start.
    """
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.executor import Executor

    from memdecay_adapters.engine.support import check_environment, check_supported

    check_environment()
    with own_errors(arguments.model):
        vllm_config = arguments.create_engine_config(UsageContext.LLM_CLASS)
    check_supported(vllm_config)
    ranks = vllm_config.parallel_config.world_size
    if ranks == 1:
        vllm_config.parallel_config.distributed_executor_backend = "uni"
    try:
        with errors_of_workers(ranks), own_errors(arguments.model), environment_of_workers(ranks):
            return LLMEngine(
                vllm_config=vllm_config,
                executor_class=Executor.get_class(vllm_config),
                log_stats=not arguments.disable_log_stats,
                usage_context=UsageContext.LLM_CLASS,
                multiprocess_mode=False,
            )
    except BaseException:
        _release_process_state()  # a half-built engine must not stand in the way of the next
        raise


def shut_down_llm_engine(engine: LLMEngine) -> None:
    """Free the model, the cache and vLLM's process-wide groups."""
    engine.engine_core.shutdown()
    del engine
    _release_process_state()


def _release_process_state() -> None:
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

    from memdecay_adapters.engine.platform_parts import clear_backends

    ensure_kv_transfer_shutdown()
    clear_backends()
    cleanup_dist_env_and_memory()
    gc.collect()
