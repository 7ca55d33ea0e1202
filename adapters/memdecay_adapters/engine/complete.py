"""A plain vLLM has all of memdecay's parts, or it does not start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memdecay_adapters.engine.settings import EngineSettings
from memdecay_agents.errors import ConfigError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

CONNECTOR = "MemDecayConnector"
REMEDY = (
    "Give vLLM all of memdecay_adapters.engine.vllm_arguments(config), "
    "or on its command line what `memdecay serve-args` prints."
)


def check_complete(vllm_config: VllmConfig) -> EngineSettings:
    """Check that worker, connector, settings and page size are there and agree; called by worker and connector.

    Raises:
        ConfigError: a part is missing, or vLLM's block size is not the configuration's page size.
    """
    worker = vllm_config.parallel_config.worker_cls
    if not _is_ours(worker):
        raise ConfigError(
            where=f"vLLM worker_cls {worker!r}",
            rule="the memdecay connector needs the memdecay worker, or evicted pages would still be read",
            remedy=REMEDY,
        )
    transfer = vllm_config.kv_transfer_config
    connector = transfer.kv_connector if transfer is not None else None
    if connector != CONNECTOR:
        raise ConfigError(
            where=f"vLLM kv_transfer_config, connector {connector!r}",
            rule="the memdecay worker needs the memdecay connector, or nothing would be evicted",
            remedy=REMEDY,
        )
    settings = EngineSettings.from_vllm_config(vllm_config)
    block_size, page_size = vllm_config.cache_config.block_size, settings.config.page_size_tokens
    if block_size != page_size:
        raise ConfigError(
            where=f"vLLM block_size {block_size}",
            rule=f"the memdecay configuration has pages of {page_size} tokens",
            remedy=REMEDY,
        )
    return settings


def _is_ours(worker: str) -> bool:
    """Whether a worker class, by its qualified name, is one of this package's or derives from one."""
    package = __name__.split(".")[0] + "."
    if worker.startswith(package):
        return True
    from vllm.utils.import_utils import resolve_obj_by_qualname

    return any(base.__module__.startswith(package) for base in resolve_obj_by_qualname(worker).__mro__)
