"""What the parts of the embedded engine share: `MemDecayEngine` is put together from them, and fills this in."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memdecay_adapters.engine.engine_thread import EngineThread
    from memdecay_adapters.engine.inprocess import EngineInternals
    from memdecay_agents.config import MemDecayConfig


class EnginePart:
    """One part's view of the engine."""

    config: MemDecayConfig
    model_name: str
    _thread: EngineThread
    _internals: EngineInternals

    @abstractmethod
    def _check_usable(self) -> None:
        """Refuse a closed engine, and one that was carried over a fork."""
