"""What vLLM loads into its API server (group ``vllm.endpoint_plugins``): the gate and the routes under /v1/memdecay.

vLLM loads it only where VLLM_PLUGINS names it; `memdecay serve` does. No route of vLLM's own is replaced.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from memdecay_adapters.server.backend import Backend
from memdecay_adapters.server.explain_route import explain_route
from memdecay_adapters.server.middleware import GateMiddleware
from memdecay_adapters.server.routes import Routes
from memdecay_adapters.server.tenants import Tenants
from memdecay_adapters.server.wire import EXPLAIN, GENERATE, INFO, SESSIONS, SNAPSHOT
from memdecay_agents.errors import UnsupportedError

PLUGIN = "memdecay"
"""Name of the entry point, and what VLLM_PLUGINS has to name."""


class MemDecayEndpoint:
    """vLLM's ``EndpointPlugin``."""

    name = PLUGIN
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._backend: Backend | None = None

    def attach_router(self, app: Any) -> None:
        """Add the gate and the routes; vLLM puts its authentication around them."""
        tenants = Tenants(api_keys(app.state.args))
        app.add_middleware(GateMiddleware, tenants=tenants, limits=lambda: self._running().limits)
        routes = Routes(self._running)
        app.add_api_route(INFO, routes.info, methods=["GET"], response_model=None)
        app.add_api_route(GENERATE, routes.generate, methods=["POST"], response_model=None)
        app.add_api_route(SESSIONS, routes.sessions, methods=["GET"], response_model=None)
        app.add_api_route(SNAPSHOT, routes.snapshot, methods=["GET"], response_model=None)
        app.add_api_route(EXPLAIN, explain_route(self._running), methods=["GET"], response_model=None)
        app.add_api_route(SESSIONS, routes.close_sessions, methods=["DELETE"], response_model=None)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Meet the engine, before the first request.

        Raises:
            UnsupportedError: there is none, or it runs without memdecay: the server does not start.
        """
        if engine_client is None:
            raise UnsupportedError(
                where="vLLM server without an engine",
                rule="there is nothing whose pages could be evicted",
                remedy="Take 'memdecay' out of VLLM_PLUGINS.",
            )
        name = (getattr(args, "served_model_name", None) or [args.model])[0]
        self._backend = await Backend.of(engine_client, name)

    def _running(self) -> Backend:
        assert self._backend is not None, "vLLM serves no request before init_state has returned"
        return self._backend


def api_keys(args: Namespace) -> list[str]:
    """The keys that vLLM's authentication will accept."""
    from vllm import envs

    return [key for key in (getattr(args, "api_key", None) or [envs.VLLM_API_KEY]) if key]
