"""What vLLM loads in every one of its processes: the connector gets a name, and that is all.

Nothing of memdecay is imported before a vLLM is configured with that name, and a vLLM that is not never notices.
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

_NAME = "MemDecayConnector"


def register() -> None:
    """Let vLLM find the connector by name; idempotent, and never raises: plain vLLM must start without us."""
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

        if _NAME not in KVConnectorFactory._registry:
            KVConnectorFactory.register_connector(_NAME, __name__, _NAME)
    except Exception as error:  # whatever this vLLM is: the plugin runs in engines that never asked for us
        logger.debug("memdecay's connector has no name in this vLLM: %s", error)


def __getattr__(name: str) -> object:
    """The connector's class, once a vLLM is configured with it.

    Raises:
        UnsupportedError: this is a vLLM of another version.
    """
    if name != _NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from memdecay_adapters.engine.versions import require_supported_vllm

    require_supported_vllm()
    from memdecay_adapters.engine.connector import MemDecayConnector

    return MemDecayConnector
