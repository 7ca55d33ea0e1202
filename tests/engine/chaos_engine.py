"""The engine that chaos is made for, and the tests' way into it."""

from __future__ import annotations

from typing import Any

from memdecay_adapters.engine import HostTier, MemDecayEngine, Recall
from memdecay_agents import MemDecayConfig
from memdecay_agents.ledger import Ledger
from memdecay_agents.recall import RetrievalHead

PAGE = 16
"""Tokens."""
POOL_PAGES = 63
CHUNK_TOKENS = 64
GUARANTEED_PAGES = POOL_PAGES - CHUNK_TOKENS // PAGE - 1
"""What can be guaranteed at once."""
MAX_MODEL_LEN = 768
BALLAST = "ballast"
"""A row that holds blocks and belongs to no request: a smaller pool."""


HOST_PAGES = 90
"""Pages of the host tier, half of them on disk: fewer than many conversations want, so that it is full."""
PAGE_BYTES = 2 * PAGE * 2 * 2 * 64 * 4
"""Two layers, keys and values of two heads of 64 float32 numbers."""
TIER = HostTier(
    max_bytes=HOST_PAGES // 2 * PAGE_BYTES,
    disk_bytes=(HOST_PAGES - HOST_PAGES // 2) * PAGE_BYTES,
    max_bytes_per_agent=HOST_PAGES * PAGE_BYTES // 2,
    checksum=True,
    recall=Recall(max_pages=3, query_tokens=8, heads=(RetrievalHead(1, 0), RetrievalHead(0, 1))),
)
ANSWERS_TOO = TIER.model_copy(update={"recall": TIER.recall.model_copy(update={"every_tokens": 1})})
"""Pages come back while the agent writes, too."""


def chaos_engine(model_folder: str, host_tier: HostTier | None = None) -> MemDecayEngine:
    """The engine that chaos is made for: 63 pages, chunks of 64 tokens, every integrity check on."""
    return MemDecayEngine(
        model_folder,
        config=MemDecayConfig(page_size_tokens=PAGE, observed_layers="all", measure_every_steps=2),
        engine_args={
            "dtype": "float32",
            "max_num_batched_tokens": CHUNK_TOKENS,
            "max_model_len": MAX_MODEL_LEN,
            "num_gpu_blocks_override": POOL_PAGES + 1,
        },
        check_integrity=True,
        host_tier=host_tier,
    )


def small_ledger(engine: MemDecayEngine, max_entries: int) -> None:
    """Give a fresh engine a ledger that is soon full, so that its filling up is not taken for a leak."""

    def exchange(llm: Any, internals: Any) -> None:
        internals.controller.ledger = Ledger(max_entries=max_entries, max_sessions=100)

    engine.run_on_engine_thread(exchange)


def manager_of(scheduler: Any) -> Any:
    """The cache manager that a vLLM scheduler drives."""
    return scheduler.kv_cache_manager.coordinator.single_type_managers[0]


def public_id(request_id: str) -> str:
    """The engine's own id of a request, without vLLM's random ending."""
    return request_id.rsplit("-", 1)[0]


def worker_of(internals: Any) -> Any:
    """The worker of an engine in this process."""
    return internals.core.model_executor.driver_worker.worker
