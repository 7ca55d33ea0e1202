"""Everything that touches vLLM.

versions, support   which vLLM and which models are served; refused at start-up otherwise
engine              the public engine: submit, generate, pool_stats, ledger
plain_vllm, plugin  the same in a plain vllm.LLM or vllm serve; complete refuses half of it
engine_thread       the thread that owns vLLM; stream is the caller's end of a request
controller          scheduler side: plans and books evictions, over step_evidence (what each step adds), session_turns
                    (whose turn a request is), session_ends (what remains of it) and request_admission (who may
                    begin); session_store holds idle sessions, pool_shares divides the pool
pressure            room for a running request, taken where it hurts least
events, metrics     what operators see: counters, log lines, Prometheus; agent_tallies by agent
determinism         what deterministic=True means
manager, spec       vLLM's cache manager for full attention, whose requests may lose pages
worker_processes    what tensor-parallel workers need to start
core_methods        what a server's front end asks the core; session_listing is one of its answers
connector           the two-way channel between scheduler and worker; step_messages are what it carries
worker, worker_rows the worker: null evicted pages before the forward pass; worker_base is shared with gpu_worker
platform_parts      CPU or CUDA; gpu_worker, worker_rows_v2 and flash_backend are not run on a GPU
cpu_backend         attention over the retained pages; observer and cpu_key_layout measure its mass
tier                evicted pages in host memory, and how they come back
integrity           invariants, checked at every step when asked
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memdecay_adapters.engine.engine import MemDecayEngine
    from memdecay_adapters.engine.plain_vllm import vllm_arguments
    from memdecay_adapters.engine.results import GenerationChunk, GenerationResult, RetentionSummary
    from memdecay_adapters.engine.shared import shared_engine
    from memdecay_adapters.engine.stream import RequestStream
    from memdecay_adapters.engine.tier import HostTier, Recall, Repair

_HOME = {
    "GenerationChunk": "results",
    "GenerationResult": "results",
    "HostTier": "tier",
    "MemDecayEngine": "engine",
    "Recall": "tier",
    "Repair": "tier",
    "RequestStream": "stream",
    "RetentionSummary": "results",
    "shared_engine": "shared",
    "vllm_arguments": "plain_vllm",
}

__all__ = [
    "GenerationChunk",
    "GenerationResult",
    "HostTier",
    "MemDecayEngine",
    "Recall",
    "Repair",
    "RequestStream",
    "RetentionSummary",
    "shared_engine",
    "vllm_arguments",
]


def __getattr__(name: str) -> object:
    import importlib

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
