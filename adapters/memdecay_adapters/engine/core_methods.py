"""What a server's front end may ask the engine core, which runs in another process.

vLLM 0.32 calls a method of its ``EngineCore`` by name between two steps (``call_utility_async``); a plugin adds its
own methods there. They are new names beside vLLM's, added when the connector of a core is built. An exception in one
of them goes back to the caller and leaves the core alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memdecay_adapters.engine.session_listing import list_sessions

if TYPE_CHECKING:
    from memdecay_adapters.engine.controller import EvictionController

DESCRIBE = "memdecay_describe"
SESSIONS = "memdecay_sessions"
CLOSE_SESSIONS = "memdecay_close_sessions"
TAKE_SUMMARY = "memdecay_take_summary"


def install_core_methods() -> None:
    """Give vLLM's engine core the methods below; idempotent."""
    from vllm.v1.engine.core import EngineCore

    for method in (memdecay_describe, memdecay_sessions, memdecay_close_sessions, memdecay_take_summary):
        setattr(EngineCore, method.__name__, method)


def _controller(core: Any) -> EvictionController:
    controller: EvictionController = core.scheduler.connector.controller
    return controller


def memdecay_describe(core: Any) -> dict[str, Any]:
    """The configuration in force, and the pool in pages."""
    controller = _controller(core)
    return {
        "config": controller.config.model_dump(mode="json"),
        "pool_pages": core.scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1,
        "chunk_pages": controller.chunk_pages,
    }


def memdecay_sessions(core: Any, tenant: str) -> list[dict[str, Any]]:
    """What the cache holds of one tenant's sessions; see `list_sessions`."""
    return list_sessions(_controller(core), tenant)


def memdecay_close_sessions(core: Any, tenant: str, thread_id: str | None) -> int:
    """Give up one tenant's idle sessions, of one thread or of all; returns how many."""
    return _controller(core).close_sessions(tenant, thread_id)


def memdecay_take_summary(core: Any, request_id: str) -> dict[str, Any] | None:
    """The retention summary of a request that ended in the front end (a stop string), by the id given there.

    vLLM appends to that id; the abort that follows a stop string may not have arrived yet, and is done here.
    """
    controller = _controller(core)
    running = [name for name, _, _ in controller.running() if _belongs(name, request_id)]
    if running:
        core.abort_requests(running)
    summary = controller.take_summary_of(lambda name: _belongs(name, request_id))
    return None if summary is None else summary.to_dict()


def _belongs(internal_id: str, request_id: str) -> bool:
    return internal_id == request_id or internal_id.startswith(f"{request_id}-")
