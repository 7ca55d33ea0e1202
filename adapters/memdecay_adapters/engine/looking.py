"""The embedded engine, looked at while it runs: snapshots, a history for pictures, a live page in the browser."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from memdecay_adapters.engine.engine_part import EnginePart
from memdecay_agents.errors import EngineError

if TYPE_CHECKING:
    from memdecay_agents.live import EngineSnapshot, LivePage
    from memdecay_agents.pictures import MemoryHistory


class Looking(EnginePart):
    """What `MemDecayEngine` shows of itself; nothing here changes it."""

    _pages: weakref.WeakSet[LivePage] | None = None

    def snapshot(self, tenant: str | None = None) -> EngineSnapshot:
        """Agents, sessions, pages by region, budget use, evictions and tokens per second, now.

        Args:
            tenant: only what is this tenant's; None: everything.
        """
        from memdecay_adapters.engine.snapshotting import take_snapshot

        self._check_usable()
        inside = self._internals
        return self._thread.call(
            lambda: take_snapshot(
                inside.controller, inside.scheduler.kv_cache_manager.block_pool, tenant, model=self.model_name
            )
        )

    def history(self, tenant: str | None = None) -> MemoryHistory:
        """What each session kept over time: save it, or draw it with `memdecay_agents.pictures`.

        Of sessions that were closed only the pages that left are known: take it before closing them.

        Args:
            tenant: only what is this tenant's; None: everything.
        """
        from memdecay_adapters.engine.history_export import export_history, sight

        self._check_usable()
        sessions, ledger = self._thread.call(lambda: sight(self._internals.controller))
        return export_history(sessions, ledger, self.config, self.model_name, tenant)

    def watch(self, port: int = 0, *, host: str = "127.0.0.1", token: str | None = None) -> LivePage:
        """Serve a live, read-only page of this engine until it, or the engine, is closed; ``.url`` is its address.

        Args:
            port: to listen on; 0: any free one.
            host: to listen on; beyond loopback a token is needed, and the page speaks plain HTTP.
            token: what visitors must bring; None: a random one where one is needed.

        Raises:
            ConfigError: the address cannot be bound, or the token is too short.
        """
        from memdecay_agents.live import LivePage

        self._check_usable()
        page = LivePage(_weak_snapshot(self), host=host, port=port, token=token)
        if self._pages is None:
            self._pages = weakref.WeakSet()
        self._pages.add(page)
        return page

    def _close_pages(self) -> None:
        for page in list(self._pages or ()):
            page.close()


def _weak_snapshot(engine: Looking) -> Callable[[], EngineSnapshot]:
    """A snapshot that does not keep the engine alive: its page may be held longer by a browser."""
    reference = weakref.ref(engine)

    def snapshot() -> EngineSnapshot:
        held = reference()
        if held is None:
            raise EngineError(where="live page", rule="the engine is gone", remedy="Start another one.")
        return held.snapshot()

    return snapshot
