"""The embedded engine's own look inside vLLM's core: the only file that reaches through its client.

vLLM 0.32 in one process: ``LLMEngine.engine_core`` is an ``InprocClient`` whose ``engine_core`` is the
``EngineCore`` with the scheduler. Nothing here changes anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memdecay_adapters.engine.connector import MemDecayConnector
from memdecay_adapters.engine.controller import EvictionController
from memdecay_adapters.engine.events import PARKED_SESSIONS, PREEMPTIONS
from memdecay_agents.errors import UnsupportedError

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.llm_engine import LLMEngine


@dataclass(frozen=True)
class PoolStats:
    """The block pool at one moment, in pages."""

    total_pages: int
    """Usable pages: without the null page."""
    free_pages: int
    """Free or reclaimable (cached, held by nobody)."""
    preemptions: int
    """Requests preempted since start."""
    idle_sessions: int
    """Sessions that hold pages between their turns."""
    parked_sessions: int
    """Idle sessions given up since start because a running request needed their pages."""
    reserved_pages: int
    """Guaranteed to running requests."""
    waiting_requests: int
    """Requests that wait because guarantees fill the pool."""
    host_pages: int = 0
    """Pages in the host tier, also copies of pages that came back."""
    host_bytes: int | None = None
    """Their bytes, over all ranks; None: there is no tier."""

    @property
    def held_pages(self) -> int:
        """Pages held by live requests and idle sessions."""
        return self.total_pages - self.free_pages


class EngineInternals:
    """Typed handles on the scheduler side of an in-process engine."""

    def __init__(self, engine: LLMEngine) -> None:
        core = getattr(engine.engine_core, "engine_core", None)
        if core is None:
            raise UnsupportedError(
                where="vLLM engine core",
                rule="it runs in another process",
                remedy="Unset VLLM_ENABLE_V1_MULTIPROCESSING: the embedded engine runs in this process.",
            )
        self.core = core
        self.scheduler: Scheduler = core.scheduler
        connector = self.scheduler.connector
        if not isinstance(connector, MemDecayConnector):
            raise UnsupportedError(
                where=f"KV connector {type(connector).__name__}",
                rule="the scheduler runs without the memdecay connector, so that nothing would be evicted",
                remedy="Start the engine with MemDecayEngine.",
            )
        self.controller: EvictionController = connector.controller

    def pool_stats(self) -> PoolStats:
        """The block pool now; call it on the engine thread."""
        pool = self.scheduler.kv_cache_manager.block_pool
        tier = self.controller.tier
        host_pages = 0 if tier is None else len(tier.catalogue)
        return PoolStats(
            total_pages=pool.num_gpu_blocks - 1,
            free_pages=pool.get_num_free_blocks(),
            preemptions=self.controller.events.total(PREEMPTIONS),
            idle_sessions=len(self.controller.sessions),
            parked_sessions=self.controller.events.total(PARKED_SESSIONS),
            reserved_pages=self.controller.admission.reserved_pages,
            waiting_requests=self.controller.admission.waiting_requests,
            host_pages=host_pages,
            host_bytes=None if tier is None else host_pages * tier.page_bytes,
        )
